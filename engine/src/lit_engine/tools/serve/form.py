"""The CSS and JavaScript of the `serve` page."""

STYLE = """<style>
form { margin: 1.5rem 0; } label { display: block; } button, input, select, textarea { font: inherit; }
div.fields { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: .7rem; }
input[name], select, textarea { box-sizing: border-box; width: 100%; padding: .3rem .5rem; }
canvas { width: 280px; height: 280px; margin: .8rem 0; border: 1px solid var(--soft); }
canvas.draws { touch-action: none; cursor: crosshair; } form > button { display: block; margin-top: .8rem; }
dl { align-items: baseline; } dd { font-size: 1.15rem; } meter { width: min(60%, 24rem); }
dl.classes > :nth-child(-n + 2) { color: var(--text); font-weight: 600; }
#answer.busy { opacity: .5; } #answer.busy:empty::after { content: "…"; }
#answer img { width: auto; min-width: 280px; } #answer img:is(.input, .photos) { image-rendering: pixelated; }
#answer img.input { max-height: 280px; }
</style>"""
# `Predictor.page` inserts `const options = {…}` before this script.
SCRIPT = """
const form = document.querySelector("form"), answer = document.querySelector("#answer");
const node = (tag, values) => Object.assign(document.createElement(tag), values);
let asked = 0;
async function ask(sample) {
  const mine = ++asked;
  answer.className = "busy";
  const found = await fetch("predict", {method: "POST", body: sample}).then(reply => reply.json())
    .catch(() => ({error: "No answer: `serve` has stopped or cannot be reached."}));
  if (mine != asked) return;
  show(...found.rows?.flatMap(shown) ?? [node("p", {textContent: found.error})]);
  const alt = "What the network sees";
  if (found.input)
    answer.append(node("p", {textContent: `${alt}:`}), node("img", {className: "input", src: found.input, alt}));
}
const show = (...nodes) => { answer.className = ""; answer.replaceChildren(...nodes); };
function shown(row) {
  const share = "probability/", list = node("dl"), classes = node("dl"), images = [];
  const likeliest = Object.entries(row).filter(([name]) => name.startsWith(share)).sort((a, b) => b[1] - a[1]);
  for (const [name, value] of likeliest.slice(0, 5)) {
    classes.append(node("dt", {textContent: name.slice(share.length)}), node("dd"));
    classes.lastChild.append(node("meter", {value}), ` ${(100 * value).toFixed(1)} %`);
  }
  if ("class_name" in row && likeliest.length) {  // shown as the first entry of the list
    classes.className = "classes";
    delete row.prediction; delete row.class_name; delete row.probability;
  }
  for (const [name, value] of Object.entries(row)) {
    if (name.startsWith(share) || value === "") continue;
    const label = name == "prediction" ? options.target : name.replace("prediction/", "");
    if (`${value}`.startsWith("data:")) images.push(node("img", {className: options.images, src: value, alt: label}));
    else list.append(node("dt", {textContent: label}), node("dd", {textContent: value?.toPrecision?.(6) / 1 || value}));
  }
  return [list, classes, ...images];
}
form.onsubmit = event => {
  event.preventDefault();
  const inputs = [...form.querySelectorAll("[name]")];
  const line = words => words.map(word => '"' + word.replaceAll('"', '""') + '"').join(options.delimiter) + "\\n";
  if (options.draws) clear();
  else if (!options.table) ask(new Blob([inputs[0].value]));
  else ask(new Blob([line(inputs.map(input => input.name)), line(inputs.map(input => input.value))]));
};
const canvas = document.querySelector("canvas"), pen = canvas?.getContext("2d");
const blank = () => { ++asked; pen.fillRect(0, 0, canvas.width, canvas.height); show(); };
const clear = () => { form.reset(); blank(); };  // also clears the file name, so that the same file can be chosen again
async function take(picture) {
  if (!picture) return;
  blank();
  ask(picture);
  const seen = await createImageBitmap(picture).catch(() => new Image());  // unknown format
  const scale = canvas.width / Math.max(seen.width, seen.height, 1);
  pen.imageSmoothingEnabled = scale < 1;
  pen.drawImage(seen, 0, 0, seen.width * scale, seen.height * scale);
  canvas.hidden = false;
}
if (canvas) {
  const given = files => { if (files[0]) { form.reset(); take(files[0]); } };
  Object.assign(pen, {fillStyle: options.paper, strokeStyle: options.ink, lineWidth: options.line, lineCap: "round"});
  form.onchange = event => take(event.target.files[0]);
  document.onpaste = event => given(event.clipboardData.files);
  document.ondragover = event => event.preventDefault();
  document.ondrop = event => { event.preventDefault(); given(event.dataTransfer.files); };
}
if (options.draws) {
  const draw = event => { pen.lineTo(event.offsetX, event.offsetY); pen.stroke(); };
  blank();
  canvas.onpointerdown = event => {
    form.reset(); canvas.setPointerCapture(event.pointerId); pen.beginPath(); draw(event);
  };
  canvas.onpointermove = event => { if (event.buttons) draw(event); };
  canvas.onpointerup = () => canvas.toBlob(ask);
}
"""

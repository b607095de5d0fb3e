"""Style and script of the page of `serve`."""

STYLE = """<style>
form { margin: 1.5rem 0; } label { display: block; } button, input, textarea { font: inherit; }
div.fields { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: .7rem; }
input[name], textarea { box-sizing: border-box; width: 100%; padding: .3rem .5rem; }
canvas { width: 280px; height: 280px; margin: .8rem 0; border: 1px solid var(--soft); }
canvas.draws { touch-action: none; cursor: crosshair; } form > button { display: block; margin-top: .8rem; }
dl { align-items: baseline; } dd { font-size: 1.15rem; } meter { width: min(60%, 24rem); }
#answer img { width: auto; min-width: 280px; }
</style>"""
SCRIPT = """
const [MOST, KIND, DRAWS, WIDTH, PAPER, INK, DELIMITER] = VALUES;  // MB of a sample; class of pictures in answers
const form = document.querySelector("form"), answer = document.querySelector("#answer");
const node = (tag, values) => Object.assign(document.createElement(tag), values);
let asked = 0;
async function ask(sample) {
  const mine = ++asked;
  let found;
  try {
    if (sample.size > MOST * 1e6) throw Error(`It is too big: ${MOST} MB are the most.`);
    found = await (await fetch("predict", {method: "POST", body: sample})).json();
  } catch (error) { found = {error: error.message}; }  // the network's, if the command has ended
  if (mine == asked) answer.replaceChildren(...found.rows?.flatMap(shown) ?? [node("p", {textContent: found.error})]);
}
function shown(row) {
  const list = node("dl"), images = [], ofClass = ([name]) => name.startsWith("probability/");
  const others = Object.entries(row).filter(entry => !ofClass(entry) && entry[1] !== "");
  const likeliest = Object.entries(row).filter(ofClass).sort((a, b) => b[1] - a[1]).slice(0, 5);
  for (const [name, value] of others) {
    if (`${value}`.startsWith("data:")) images.push(node("img", {className: KIND, src: value, alt: name}));
    else list.append(node("dt", {textContent: name}), node("dd", {textContent: value?.toPrecision?.(6) / 1 || value}));
  }
  for (const [name, value] of likeliest) {
    list.append(node("dt", {textContent: name.slice(12)}), node("dd"));
    list.lastChild.append(node("meter", {value}), ` ${(100 * value).toFixed(1)} %`);
  }
  return [list, ...images];
}
form.onsubmit = event => {
  event.preventDefault();
  const inputs = [...form.querySelectorAll("[name]")];
  const line = words => words.map(word => '"' + word.replaceAll('"', '""') + '"').join(DELIMITER) + "\\n";
  if (DRAWS) clear();
  else if (inputs[0].type != "number") ask(new Blob([inputs[0].value]));
  else ask(new Blob([line(inputs.map(input => input.name)), line(inputs.map(input => input.value))]));
};
const canvas = document.querySelector("canvas"), pen = canvas?.getContext("2d");
const clear = () => { pen.fillRect(0, 0, canvas.width, canvas.height); answer.replaceChildren(); };
async function take(picture) {
  if (!picture) return;
  clear();
  ask(picture);
  const seen = await createImageBitmap(picture).catch(() => new Image());  // of a kind that it does not know
  const scale = canvas.width / Math.max(seen.width, seen.height, 1);
  pen.imageSmoothingEnabled = scale < 1;
  pen.drawImage(seen, 0, 0, seen.width * scale, seen.height * scale);
  canvas.hidden = false;
}
if (canvas) {
  Object.assign(pen, {fillStyle: PAPER, strokeStyle: INK, lineWidth: WIDTH, lineCap: "round"});
  form.onchange = event => take(event.target.files[0]);
  document.onpaste = event => take(event.clipboardData.files[0]);
  document.ondragover = event => event.preventDefault();
  document.ondrop = event => { event.preventDefault(); take(event.dataTransfer.files[0]); };
}
if (DRAWS) {
  const draw = event => { pen.lineTo(event.offsetX, event.offsetY); pen.stroke(); };
  clear();
  canvas.onpointerdown = event => { canvas.setPointerCapture(event.pointerId); pen.beginPath(); draw(event); };
  canvas.onpointermove = event => { if (event.buttons) draw(event); };
  canvas.onpointerup = () => canvas.toBlob(ask);
}
"""

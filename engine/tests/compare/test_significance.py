"""Compares significance tests with scipy and sacrebleu, simulates their size and power, and tests `compare --test`."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
from scipy import stats
from sklearn import metrics

from html_pages import Page
from lit_engine.tools.runs.reading import lower_is_better, read_runs
from lit_engine.tools.runs.significance import compute_t_test_p, holm, mcnemar, paired_runs, resample


def mean(sums):
    return sums[..., 0] / sums[..., 1]


def with_count(values):
    return np.stack([values, np.ones(len(values))], axis=1)


@pytest.mark.parametrize("df", [1, 2, 3, 4, 9, 10, 99])
def test_t_test_p_value_matches_scipy(df):
    for t in (0, 0.3, -1, 2.5, 20):
        assert compute_t_test_p(t, df) == pytest.approx(2 * stats.t.sf(abs(t), df), abs=1e-12)


@pytest.mark.parametrize(("won", "lost"), [(0, 0), (1, 0), (7, 5), (30, 12), (0, 9), (700, 600)])
def test_mcnemar_matches_scipys_binomial_test(won, lost):
    a, b = np.repeat([True, False, True], [50, won, lost]), np.repeat([True, True, False], [50, won, lost])
    expected = stats.binomtest(won, won + lost).pvalue if won + lost else 1
    assert mcnemar(a, b).p == pytest.approx(expected, rel=1e-9)
    assert mcnemar(a, b).effect == pytest.approx((won - lost) / (50 + won + lost))


def test_paired_tests_match_scipy():
    a, b = np.random.default_rng(0).normal([[0], [0.5]], size=(2, 9))
    found, expected = paired_runs(a, b), stats.ttest_rel(b, a)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval()))
    exact = stats.permutation_test((b - a,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert found.p == pytest.approx(exact.pvalue)
    few = paired_runs(a[:5], b[:5])
    assert (few.p, few.method) == (pytest.approx(stats.ttest_rel(b[:5], a[:5]).pvalue), "paired t test")


def test_holm_correction_matches_a_published_example():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@pytest.mark.parametrize("name", ["BLEU", "CHRF"])
def test_approximate_randomization_matches_sacrebleu(name):
    from sacrebleu import metrics as of_texts
    from sacrebleu.significance import PairedTest

    rng, words = np.random.default_rng(1), [*"abcdefghijk"]
    references = [" ".join(rng.choice(words, 9)) for _ in range(60)]
    systems = [[" ".join(w if rng.random() > p else "x" for w in r.split()) for r in references] for p in (0.2, 0.23)]
    metric = getattr(of_texts, name)()
    a, b = (np.array(metric._extract_corpus_statistics(texts, [references]), float) for texts in systems)

    def score(sums):
        rows = sums.reshape(-1, sums.shape[-1]).astype(int).tolist()
        return np.array([metric._compute_score_from_stats(row).score for row in rows]).reshape(sums.shape[:-1])

    found = resample(a, b, score, 1000)
    named = [("Baseline: a", systems[0]), ("b", systems[1])]
    _, results = PairedTest(named, {name: metric}, [references], "ar", 1000)()
    expected = next(of[1] for key, of in results.items() if key != "System")
    assert found.b == pytest.approx(expected.score)
    assert found.p == pytest.approx(expected.p_value, abs=1e-9)  # sacrebleu uses the same random numbers


def share(tests):
    return float(np.mean([found.p < 0.05 for found in tests]))


def within_sampling_error(found, rate, trials):
    return abs(found - rate) < 3 * math.sqrt(rate * (1 - rate) / trials)


def test_false_positive_rate_is_about_5_percent():
    rng, trials = np.random.default_rng(2), 1000
    resampled = [resample(*map(with_count, rng.normal(size=(2, 30))), mean, 199) for _ in range(trials)]
    assert within_sampling_error(share(resampled), 0.05, trials)
    assert within_sampling_error(share(paired_runs(*rng.normal(size=(2, 4))) for _ in range(trials)), 0.05, trials)
    assert within_sampling_error(share(paired_runs(*rng.normal(size=(2, 7))) for _ in range(trials)), 6 / 128, trials)
    assert share(mcnemar(*(rng.random((2, 200)) < 0.8)) for _ in range(trials)) < 0.06  # exact, so at most 5 %


def test_folds_are_corrected_for_their_overlap():
    rng, trials, k = np.random.default_rng(3), 4000, 5
    # Simulate fold differences with the correlation that the correction assumes, test / (test + training).
    pairs = math.sqrt(1 / k) * rng.normal(size=(trials, 1)) + math.sqrt(1 - 1 / k) * rng.normal(size=(trials, k))
    corrected = share(paired_runs(np.zeros(k), d, overlap=1 / (k - 1)) for d in pairs)
    assert within_sampling_error(corrected, 0.05, trials)
    assert share(paired_runs(np.zeros(k), d) for d in pairs) > 0.1


def test_needed_sample_size_gives_a_power_of_80_percent():
    rng = np.random.default_rng(4)
    pilot = paired_runs(np.zeros(1000), (d := rng.normal(size=1000)) - d.mean() + 0.8 * d.std(ddof=1))
    assert pilot.needed in (14, 15)
    found = share(paired_runs(np.zeros(pilot.needed), rng.normal(0.8, 1, pilot.needed)) for _ in range(500))
    assert 0.74 < found < 0.88
    right = np.repeat([True, False, True], [320, 50, 30])
    pilot = mcnemar(right, np.repeat([True, True, False], [320, 50, 30]))
    drawn = rng.choice(3, (500, pilot.needed), p=[50 / 400, 30 / 400, 320 / 400])
    assert 0.74 < share(mcnemar(row != 1, row != 0) for row in drawn) < 0.86


def write(run, header, rows):
    (run / "predictions").mkdir()
    (run / "predictions" / "test.csv").write_text("\n".join([header, *rows]) + "\n")


def first_score(say, metric):
    status, out, err = say(f"compare runs/x/a runs/x/b --test {metric} --json")
    assert status in (0, 3, 4), err
    return json.loads(out)["tests"][0]["a"]


def test_classification_scores_match_scikit_learn(make_run, say):
    rng, target = np.random.default_rng(0), np.random.default_rng(1).integers(4, size=50)
    found = [np.where(rng.random(50) < share, target, rng.integers(4, size=50)) for share in (0.6, 0.7)]
    for name, predicted in zip("ab", found, strict=True):
        rows = [f"{i},{p},{t}" for i, (p, t) in enumerate(zip(predicted, target, strict=True))]
        write(make_run(name), "index,prediction,target", rows)
    assert first_score(say, "accuracy") == pytest.approx(metrics.accuracy_score(target, found[0]))
    assert first_score(say, "f1") == pytest.approx(metrics.f1_score(target, found[0], average="macro"))
    assert first_score(say, "iou") == pytest.approx(metrics.jaccard_score(target, found[0], average="macro"))


@pytest.mark.parametrize("predictions", [("1.0", "0.0", "1.0"), ("True", "False", "True"), ("1", "0", "1")])
def test_classes_may_be_predicted_as_floats_or_booleans(make_run, say, predictions):
    for name in "ab":
        rows = [f"{i},{p},{t}" for i, (p, t) in enumerate(zip(predictions, (1, 0, 0), strict=True))]
        write(make_run(name, test={"test_accuracy": 0.5}), "index,prediction,target", rows)
    assert first_score(say, "accuracy") == pytest.approx(2 / 3)
    assert (
        "accuracy is 0.5000 in runs/x/a/metrics.json, but 0.6667 in the"
        in say("compare runs/x/a runs/x/b --test accuracy")[1]
    )


def test_class_names_with_leading_zeros_are_not_converted(make_run, say):
    for name, second in (("a", "02"), ("b", "01;02")):
        rows = ["0,01,01", f"1,{second},02", "2,01;02,01;02", "3,02,02"]
        write(make_run(name), "index,labels,target", rows if name == "b" else [*rows[:2], "2,01,01;02", rows[3]])
    status, out, _ = say("compare runs/x/a runs/x/b --test accuracy --json")
    assert status == 3
    assert [json.loads(out)["tests"][0][name] for name in "ab"] == [0.75, 0.75]


def test_references_may_contain_their_separator(make_run, say):
    translations, references = ["Home | Site map", "a red car"], [["Home | Site plan", "a car"], ["Start | Map", None]]
    rows = [f"0,{translations[0]},Home \\| Site plan | Start \\| Map", f"1,{translations[1]},a car"]
    for name in "ab":
        write(make_run(name), "index,hypothesis,references", rows)
    expected = sacrebleu.CHRF(word_order=0).corpus_score(translations, references).score
    assert first_score(say, "chrf") == pytest.approx(expected)


def test_empty_translations_have_a_score_of_zero(make_run, say):
    for name in "ab":
        write(make_run(name), "index,hypothesis,references", ["0,,a car", "1,,the cat"])
    assert first_score(say, "chrf") == 0


def test_text_metrics_need_the_tokenizer_recorded_by_a_test(make_run, say):
    for name in "ab":
        write(run := make_run(name), "index,hypothesis,references", ["0,a red car,a car", "1,a cat,the cat"])
        sections = json.loads((run / "metrics.json").read_text())
        (run / "metrics.json").write_text(json.dumps({"fit": sections["fit"]}))
    status, _, err = say("compare runs/x/a runs/x/b --test bleu")
    assert status == 2
    assert "runs/x/a was not tested: run `toy test runs/x/a`, which records how bleu is computed" in err


def test_multilabel_scores_match_scikit_learn(make_run, say):
    true, *found = np.random.default_rng(2).random((3, 40, 3)) < 0.5
    for name, predicted in zip("ab", found, strict=True):
        texts = [[";".join(np.array(["x", "y", "z"])[row]) for row in rows] for rows in (predicted, true)]
        write(
            make_run(name), "index,labels,target", [f"{i},{p},{t}" for i, (p, t) in enumerate(zip(*texts, strict=True))]
        )
    assert first_score(say, "accuracy") == pytest.approx(metrics.accuracy_score(true, found[0]))
    assert first_score(say, "f1") == pytest.approx(metrics.f1_score(true, found[0], average="macro"))


@pytest.mark.parametrize(("separator", "notes"), [(";", 1), (" ", 0)])
def test_joined_labels_in_the_column_of_a_single_class_are_reported(make_run, say, separator, notes):
    for name in "ab":
        write(make_run(name), "index,prediction,target", [f"0,x{separator}y,x{separator}y", "1,x,y"])
    status, _, err = say("compare runs/x/a runs/x/b --test f1")
    assert status in (0, 3, 4), err
    assert err.count("name the column `labels`") == notes


def test_labels_that_never_occur_count_as_zero(make_run, say):
    """The result matches scikit-learn and torchmetrics."""
    for name in "ab":
        header = "index,labels,target,probability/x,probability/y,probability/z"
        write(make_run(name), header, ["0,x;y,x,0.9,0.6,0.1", "1,y,y,0.2,0.8,0.1"])
    for metric, score in (("f1", metrics.f1_score), ("iou", metrics.jaccard_score)):
        expected = score([[1, 0, 0], [0, 1, 0]], [[1, 1, 0], [0, 1, 0]], average="macro", zero_division=0)
        assert first_score(say, metric) == pytest.approx(expected)


def test_a_sample_is_won_if_its_labels_are_closer_to_the_target(make_run, say):
    header = "index,labels,target,probability/x,probability/y,probability/z"
    labels = {"a": ["x;y", "x", "", "z"], "b": ["x", "x;y", "", ""]}
    for name, found in labels.items():
        rows = [f"{n},{one},{true},0,0,0" for n, (one, true) in enumerate(zip(found, ["x", "x", "", ""], strict=True))]
        write(make_run(name), header, rows)
    for metric in ("f1", "iou"):
        (found,) = json.loads(say(f"compare runs/x/a runs/x/b --test {metric} --json")[1])["tests"]
        assert (sorted(found["won"]), found["lost"]) == ([0, 3], [1])


def test_segmentation_scores_match_scikit_learn(make_run, say):
    rng = np.random.default_rng(3)
    true = rng.integers(-1, 3, size=(8, 30))  # -1: unlabelled
    found = [np.where(rng.random(true.shape) < share, abs(true), 1) for share in (0.5, 0.6)]
    for name, predicted in zip("ab", found, strict=True):
        header = ",".join(["index", *(f"{what}/{k}" for k in range(3) for what in ("hits", "predicted", "true"))])
        rows = [[i, *(int(n) for k in range(3) for n in (
            ((p == k) & (t == k)).sum(), ((p == k) & (t >= 0)).sum(), (t == k).sum()))]
            for i, (p, t) in enumerate(zip(predicted, true, strict=True))]  # fmt: skip
        write(make_run(name), header, [",".join(map(str, row)) for row in rows])
    known = true >= 0
    expected = metrics.jaccard_score(true[known], found[0][known], average="macro")
    assert first_score(say, "iou") == first_score(say, "mean_iou") == pytest.approx(expected)
    assert first_score(say, "accuracy") == pytest.approx(metrics.accuracy_score(true[known], found[0][known]))


def test_regression_scores_match_scikit_learn(make_run, say):
    true, *found = np.random.default_rng(4).normal([0, 100], size=(3, 40, 2))
    for name, predicted in zip("ab", found, strict=True):
        rows = [
            ",".join(map(repr, [i, *p.tolist(), *t.tolist(), 7]))  # an input may be named target
            for i, (p, t) in enumerate(zip(predicted, true, strict=True))
        ]
        write(make_run(name), "index,prediction/u,prediction/v,target/u,target/v,target", rows)
    assert first_score(say, "r2") == pytest.approx(metrics.r2_score(true, found[0]))
    assert first_score(say, "mae/v") == pytest.approx(metrics.mean_absolute_error(true[:, 1], found[0][:, 1]))
    assert first_score(say, "rmse/u") == pytest.approx(metrics.root_mean_squared_error(true[:, 0], found[0][:, 0]))


def test_a_target_named_loss_does_not_change_the_direction_of_a_metric(make_run, say):
    for name, error in (("a", 1), ("b", 0)):
        rows = [f"{i},{i + error * (-1) ** i},{i},{i},{i}" for i in range(9)]
        write(make_run(name), "index,prediction/loss,prediction/gain,target/loss,target/gain", rows)
    for metric, direction in (("r2/loss", "higher"), ("mae/loss", "lower"), ("mae/gain", "lower")):
        assert f"{metric} ({direction} is better)" in say(f"compare runs/x/a runs/x/b --test {metric}")[1]


def test_a_class_named_hinge_does_not_change_the_direction_of_a_metric(make_run):
    run = read_runs([str(make_run("a"))])[0]
    assert [lower_is_better(run, name) for name in ("class_accuracy/hinge", "hinge", "f1/error", "error")] == [
        False, True, False, True,
    ]  # fmt: skip


def test_interval_excludes_resamples_with_a_constant_target(make_run, say):
    for name, predictions in (("a", (1, 2, 4)), ("b", (2, 2, 2))):
        rows = [f"{i},{p},{t}" for i, (p, t) in enumerate(zip(predictions, (1, 2, 4), strict=True))]
        write(make_run(name), "index,prediction,target", rows)
    assert json.loads(say("compare runs/x/a runs/x/b --test r2 --json")[1])["tests"][0]["high"] < -0.9


def test_equal_outputs_are_not_significant():
    values = with_count(np.arange(9.0))
    found = resample(values, values, mean, 99)
    assert found.p == 1


def test_input_columns_do_not_affect_the_comparison(make_run, say):
    header = "index,source,labels,target_price,prediction,target"
    for name, prediction in (("a", 2), ("b", 1)):
        write(make_run(name), header, [f"{i},web,cat,9,{prediction if i else 0},{i % 2}" for i in range(6)])
    assert first_score(say, "accuracy") == pytest.approx(1 / 6)  # the first sample of six
    assert first_score(say, "mse") == pytest.approx(np.mean([0, 1, 4, 1, 4, 1]))


def test_columns_on_the_page_are_labelled_with_run_names(make_run, say):
    for name, prediction in (("a/1", 0), ("b/1", 1)):
        write(make_run(name), "index,prediction,target", [f"0,{prediction},1", "1,1,1"])
    *_, page = say("compare runs/x/a/1 runs/x/b/1 --test accuracy")[1].splitlines()
    (table,) = Page(Path(page.removeprefix("page: ")).read_text()).tables
    assert table[0] == ["index", "prediction (a/1)", "prediction (b/1)", "target"]


def test_exit_status_indicates_the_verdict(make_run, say):
    for name, wrong in (("a", 9), ("b", 0), ("c", 12)):
        write(make_run(name), "index,prediction,target", [f"{i},{int(i < wrong)},0" for i in range(100)])
    status, out, _ = say("compare runs/x/a runs/x/b --test accuracy")
    assert status == 0
    assert "accuracy (higher is better): 0.9100 → 1.0000, difference +0.0900" in out
    assert "better: p 0.0039 (exact McNemar test); 9 samples won, 0 lost" in out
    assert say("compare runs/x/b runs/x/a --test accuracy")[0] == 4
    assert say("compare runs/x/a runs/x/c --test accuracy")[0] == 3
    status, out, _ = say("compare runs/x/a runs/x/a --test accuracy f1")
    assert (status, "no images" in out) == (3, False)
    say("compare runs/x/a runs/x/b --test accuracy f1")
    page = Path("runs/x/test.html").read_text()
    anchors = re.findall(' id="(.*?)"', page)
    assert len(set(anchors)) == len(anchors) == 3
    assert page.count(">Won: 9<") == 1  # the same samples account for the differences in both accuracy and f1
    status, out, _ = say("compare runs/x/a runs/x/b runs/x/c --test accuracy --json")
    first, second = json.loads(out)["tests"]
    assert (status, first["verdict"], second["verdict"]) == (3, "better", "not distinguishable")
    assert first["p_holm"] == pytest.approx(2 * first["p"])
    assert (first["won"], sorted(second["lost"])) == ([8, 7, 6, 5, 4, 3, 2, 1, 0], [9, 10, 11])


def test_identical_differences_are_compared_with_a_permutation_test():
    found = paired_runs([0.90, 0.80], [0.885, 0.785])
    assert (found.p, found.method) == (0.5, "permutation test")
    assert paired_runs([0.9, 0.8], [0.9, 0.8]).p == 1
    assert paired_runs(np.zeros(7), np.full(7, 0.1)).p == 2 / 2**7
    assert paired_runs(np.zeros(7), np.full(7, 0.1), overlap=1 / 6).p == 1  # folds are not independent


def test_seeds_are_paired(make_run, say):
    for name, best in (("a", 0.3), ("b", 0.2)):
        for seed in range(6):
            make_run(f"{name}/{seed}", (best + seed / 10 + (name == "b") * seed / 1000,), seed=seed)
    status, out, _ = say("compare runs/x/a runs/x/b --test val/loss")
    assert (status, "better: p 0.031 (permutation test)" in out) == (0, True)
    assert "6 seeds" in out
    assert "warning" not in out
    assert say("compare runs/*/b runs/x/a* --test val/loss")[::2] == (4, "")
    assert list(Path("runs").rglob("test.html")) == [Path("runs/x/test.html")]
    assert say("compare runs/x/a runs/x/b --test val/loss val/loss")[1] == out  # no correction for a second test


def test_groups_tested_on_different_data_cause_a_warning(make_run, say):
    for name in "ab":
        for seed in range(2):
            make_run(
                f"{name}/{seed}", (0.5 + seed / 10,), seed=seed, data={"train": "0", "test": name if seed else "0"}
            )
    out = say("compare runs/x/a runs/x/b --test test/loss")[1]
    assert "warning: the test data differ between runs/x/a/1 and runs/x/b/1\n" in out


def test_unused_columns_of_the_input_may_contain_nan(make_run, say):
    header = "index,source_score,target/y,prediction/y"
    for name, error in (("a", 1), ("b", 0)):
        write(make_run(name), header, [f"{n},nan,{n if n else 'nan'},{n + error * n % 3}" for n in range(9)])
    assert "have different test sets" not in say("compare runs/x/a runs/x/b --test mse")[2]


@pytest.mark.parametrize("name", ["accuracy", "test/accuracy", "test_accuracy"])
def test_metrics_are_found_by_their_name_without_the_stage(make_run, say, name):
    for folder, accuracy in (("a", 0.5), ("b", 0.7)):
        for seed in range(6):
            make_run(f"{folder}/{seed}", seed=seed, test={"test_accuracy": accuracy + seed / 100})
    status, out, err = say(f"compare runs/x/a runs/x/b --test {name}")
    assert (status, "test_accuracy (higher is better): 0.5250" in out) == (0, True), err


def test_runs_are_compared_on_the_same_split_even_if_some_were_not_tested(make_run, say):
    for seed in range(6):
        make_run(f"a/{seed}", (0.3 + seed / 10,), seed=seed, test={"test/loss": 0.5, "test/samples": 9})
        (make_run(f"b/{seed}", (0.2 + seed / 10,), seed=seed) / "metrics.json").write_text("{}")
    assert "val/loss (lower is better): 0.5500 → 0.4500" in say("compare runs/x/a runs/x/b --test val/loss")[1]
    assert "runs/x/b/0 has no metric test/loss; it has val/loss" in say("compare runs/x/a runs/x/b --test loss")[2]


def test_metrics_of_single_targets_are_compared_over_seeds(make_run, say):
    for name, error in (("a", 3.0), ("b", 2.0)):
        for seed in range(6):
            make_run(f"{name}/{seed}", seed=seed, test={"test/mse/price": error + seed / 10})
    for metric in ("mse/price", "test/mse/price"):
        status, out, _ = say(f"compare runs/x/a runs/x/b --test {metric}")
        assert (status, "test/mse/price (lower is better): 3.25" in out) == (0, True)
    status, out, _ = say("compare runs/x/a runs/x/b --over seed_everything --metric mse/price")
    assert (status, "2.7500 ± 0.5519" in out) == (0, True)


@pytest.mark.parametrize(
    ("metric", "is_lower"),
    [("nll", True), ("cer", True), ("translation_edit_rate", True), ("kl_divergence", True), ("hamming_distance", True),
     ("word_info_lost", True), ("cross_entropy", True), ("brier_score", True), ("tweedie_deviance_score", True),
     ("fid", True), ("ppl", True), ("rmsle", True), ("kl_div", True), ("bpb", True), ("eer", True),
     ("mase", True), ("wape", True), ("hausdorff", True), ("auroc/error", False), ("error/auroc", True),
     ("confidence", False), ("credit", False), ("layer_f1", False), ("recall", False)],
)  # fmt: skip
def test_direction_of_a_metric_is_inferred_from_its_name(make_run, say, metric, is_lower):
    for name, value in (("a", 0.3), ("b", 0.2)):
        for seed in range(6):
            make_run(f"{name}/{seed}", seed=seed, test={f"test/{metric}": value + seed / 10})
    status, out, _ = say(f"compare runs/x/a runs/x/b --test {metric}")
    assert status == (0 if is_lower else 4)
    assert f"test/{metric} ({'lower' if is_lower else 'higher'} is better): " in out


def test_direction_of_the_monitored_metric_follows_the_checkpoint_mode(make_run, say):
    checkpoint = {"class_path": "p.Checkpoint", "init_args": {"monitor": "val/tilt", "mode": "min"}}
    config = {**make_run.config, "trainer": {"callbacks": [checkpoint]}}
    for name, value in (("a", 0.3), ("b", 0.2)):
        for seed in range(6):
            config["seed_everything"] = seed
            make_run(f"{name}/{seed}", config=config, test={"test/tilt": value})
    assert "test/tilt (lower is better): " in say("compare runs/x/a runs/x/b --test tilt")[1]


def test_folds_are_paired_and_their_seeds_averaged(make_run, say):
    for name, best in (("a", 0.3), ("b", 0.2)):
        for fold in range(3):
            for seed in (1, 2):
                loss = best + fold / 10 + (name == "b") * fold * seed / 1000
                config = {**make_run.config, "seed_everything": seed,
                          "data": {"class_path": "p.Data", "init_args": {"folds": 3, "fold": fold}}}  # fmt: skip
                make_run(f"{name}/{fold}-{seed}", (loss,), config=config)
    status, out, _ = say("compare runs/x/a runs/x/b --test val/loss")
    assert (status, "(corrected t test for folds)" in out, "3 folds" in out) == (0, True, True)


def test_an_incomplete_last_epoch_does_not_change_the_overlap_of_folds(make_run, say):
    values = [[0.3, 0.4, 0.5], [0.2, 0.35, 0.41]]
    for name, losses in zip("ab", values, strict=True):
        for fold, loss in enumerate(losses):
            config = {**make_run.config, "data": {"class_path": "p.Data", "init_args": {"folds": 3, "fold": fold}}}
            run = make_run(f"{name}/{fold}", config=config, test={"test/loss": loss, "test/samples": 100})
            (run / "metrics.csv").write_text("epoch,step,train/samples\n0,10,300\n1,12,64\n")
    found = json.loads(say("compare runs/x/a runs/x/b --test loss --json")[1])["tests"][0]
    assert found["p"] == pytest.approx(paired_runs(*values, overlap=100 / 300).p)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("a --test accuracy", "--test needs two runs"),
        ("a none --test accuracy", "`predict runs/x/none` writes them"),
        ("a other --test accuracy", "different test sets: the target of index 1 differs (0 and 1)"),
        ("a short --test accuracy", "different test sets: 2 and 1 samples"),
        ("a short --test acuracy", "different test sets"),
        ("bare bare --test error", "may have different test sets, because their predictions have no column target"),
        ("a a --test acuracy", "did you mean accuracy?"),
        ("a a --test loss", "(available: accuracy, f1, iou, mse, rmse, mae, prediction)"),
        ("a a --test bleu", "the predictions of runs/x/a have no column references"),
        ("a a --test val/accuracy", "use --test accuracy"),
        ("a pair --test loss", "at least two common seeds or folds"),
        ("a a --test accuracy --csv t.csv", "--csv cannot be used with --test"),
        ("a a --test accuracy/cat", "--test accuracy/cat cannot be computed from predictions"),
        ("a a --test mse/height", "--test mse/height cannot be computed from predictions"),
        ("nan nan --test mae", "the predictions of runs/x/nan contain NaN or infinity in prediction"),
        ("a a --test r2", "the metric is undefined for these samples (for example, R² of a constant target)"),
        ("pair bad --test loss", "loss must be finite: it is 0.7 in runs/x/pair/1 and nan in runs/x/bad/1"),
    ],
)  # fmt: skip
def test_invalid_comparisons_are_rejected_with_a_reason(make_run, say, command, message):
    write(make_run("a"), "index,prediction,target", ["0,0,0", "1,1,0"])
    write(make_run("other"), "index,prediction,target", ["0,0,0", "1,1,1"])
    write(make_run("short"), "index,prediction,target", ["0,0,0"])
    write(make_run("bare"), "index,error", ["0,0.5", "1,0.25"])
    write(make_run("nan"), "index,prediction,target", ["0,nan,0", "1,1,0"])
    make_run("none"), make_run("pair/1", seed=1), make_run("pair/2", seed=2)
    make_run("bad/1", seed=1, test={"test/loss": math.nan}), make_run("bad/2", seed=2)
    words = [
        f"runs/x/{word}" if word in ("a", "bad", "bare", "nan", "none", "other", "short", "pair") else word
        for word in command.split()
    ]
    status, _, err = say(" ".join(["compare", *words]))
    assert (status, message in err) == (2, True), err

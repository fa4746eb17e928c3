"""The task `classify` on two ranks: the same metrics, and the same weights, as on one."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from .conftest import Done, Starter, write_llama


def test_two_ranks_measure_and_train_as_one_does(step: Starter, tmp_path: Path) -> None:
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    write_llama(tmp_path / "m", **shape, num_key_value_heads=1, vocab_size=300, max_position_embeddings=64)
    words = ("red", "green", "blue")
    rows = [f"it is {words[i % 3]} {'!' * (i % 5)},{i % 3},{i % 2 if i % 4 else ''}\n" for i in range(101)]
    (tmp_path / "data.csv").write_text("text,colour,odd\n" + "".join(rows))
    settings = ["vocab=300", "seq_len=16", "steps=10", "eval_every=5", "global_batch_size=8", "micro_batch_size=4"]
    settings += [f"model={tmp_path / 'm'}", f"data={tmp_path / 'data.csv'}", 'target_cols=["colour","odd"]']

    def measured(done: Done) -> list[dict[str, float]]:
        assert done.status == 0, done.err
        lines = (done.run_dir / "metrics.jsonl").read_text().splitlines()
        return [
            {k: round(v, 5) for k, v in row.items() if k.startswith(("val_loss", "accuracy", "f1", "exact"))}
            for row in map(json.loads, lines)
        ]

    def weights(done: Done) -> str:
        return hashlib.sha256((done.run_dir / "model" / "model.safetensors").read_bytes()).hexdigest()

    two = step(1, 2, "task", "classify", *settings, run="runs/two")
    one = step(1, 1, "task", "classify", *settings, run="runs/one")
    assert measured(two) == measured(one)
    assert {"val_loss", "accuracy_colour", "accuracy_odd", "f1_colour", "f1_odd", "exact_match"} == measured(two)[
        -1
    ].keys()
    assert weights(two) == weights(one)

"""Write the float64 goldens of a real checkpoint.

    python tools/make_real_model_goldens.py MODEL PROMPTS.json OUT.json [-n 32]

MODEL is a GGUF file or a Hugging Face folder. PROMPTS.json holds ``{"prompts": [...]}``, each with
a ``name``, a ``text``, perhaps ``ids`` (else reference_tokenizer makes them from the GGUF's
vocabulary, control tokens in the text included), and perhaps ``positions``: "all" (the default),
"sparse" (every 8th and the last 64) or "none" (only the continuation).

OUT.json holds, for each prompt, its text and ids; for each kept position the 64 highest logits
(ids and values, best first) and the logsumexp of all; and a greedy continuation with the margin
of each id over the second best. Everything is computed by reference_model: weights expanded to
float64, float64 sums. Logits are rounded to 6 decimals, logsumexps to 9.

Needs 8 bytes of memory a parameter, and as much time as that memory takes to be read once a
position (about two minutes for SmolLM2-135M).
"""

import argparse
import hashlib
import json
from pathlib import Path

import numpy as np
from reference_model import ReferenceModel
from reference_tokenizer import read_tokenizer

TOP = 64
SPARSE_STEP = 8
SPARSE_TAIL = 64


def kept_positions(kind: str, n: int) -> list[int]:
    """Positions of a prompt of n ids whose logits are kept."""
    sparse = set(range(0, n, SPARSE_STEP)) | set(range(max(n - SPARSE_TAIL, 0), n))
    return {"all": list(range(n)), "sparse": sorted(sparse), "none": []}[kind]


def golden(model: ReferenceModel, name: str, text: str, ids: list[int], kind: str, n: int) -> dict:
    """Everything that is kept of one prompt."""
    entry: dict = {"name": name, "text": text, "ids": ids}
    positions = kept_positions(kind, len(ids))
    if positions:
        entry |= {"positions": positions, "top_ids": [], "top_logits": [], "logsumexp": []}
        for row in model.hidden(ids)[positions]:
            logits = model.head @ row
            top = np.argsort(-logits, kind="stable")[:TOP]
            highest = logits[top[0]]
            logsumexp = highest + np.log(np.exp(logits - highest).sum())
            entry["top_ids"].append(top.tolist())
            entry["top_logits"].append([round(float(value), 6) for value in logits[top]])
            entry["logsumexp"].append(round(float(logsumexp), 9))
    chosen, margins = model.greedy(ids, n)
    entry["greedy"] = {"ids": chosen, "margins": [round(margin, 6) for margin in margins]}
    return entry


def sha256(path: Path) -> dict[str, str]:
    """Hash of each file of the checkpoint that decides its numbers."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    sums = {}
    for file in files:
        with file.open("rb") as stream:
            sums[file.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return sums


def write(path: Path, golden_file: dict) -> None:
    """Write JSON with one line a list, so that a diff can be read."""
    head = {key: value for key, value in golden_file.items() if key != "prompts"}
    lines = ["{", *(f" {json.dumps(key)}: {json.dumps(head[key])}," for key in head)]
    lines.append(' "prompts": [')
    for i, entry in enumerate(golden_file["prompts"]):
        lines.append("  {")
        fields = []
        for key, value in entry.items():
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            fields.append(f"   {json.dumps(key)}: {text.replace('],[', '],' + chr(10) + '    [')}")
        lines.append(",\n".join(fields))
        lines.append("  }" if i == len(golden_file["prompts"]) - 1 else "  },")
    lines.append(" ]\n}\n")
    path.write_text("\n".join(lines), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="float64 goldens of a real checkpoint")
    parser.add_argument("model", type=Path)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("-n", type=int, default=32, help="ids of each greedy continuation")
    arguments = parser.parse_args()
    prompts = json.loads(arguments.prompts.read_text("utf-8"))["prompts"]
    if any("ids" not in prompt for prompt in prompts):
        tokenizer, start = read_tokenizer(arguments.model)
        for prompt in prompts:
            prompt.setdefault("ids", start + tokenizer.encode(prompt["text"]).ids)
    model = ReferenceModel(arguments.model)
    entries = []
    for prompt in prompts:
        kind = prompt.get("positions", "all")
        entries.append(
            golden(model, prompt["name"], prompt["text"], prompt["ids"], kind, arguments.n)
        )
        print(f"{prompt['name']}: {len(prompt['ids'])} ids", flush=True)
    golden_file = {
        "family": model.recipe.family,
        "sha256": sha256(arguments.model),
        "made_by": "tools/make_real_model_goldens.py: float64 weights, float64 sums",
        "prompts": entries,
    }
    write(arguments.out, golden_file)


if __name__ == "__main__":
    main()

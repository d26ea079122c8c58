"""Write the settings of five peers that all claim to serve blocks 1 and 2."""

import json
from pathlib import Path

PEERS = {
    "honest": (1, 2, "honest"),
    "int8": (1, 2, "int8"),
    "lora": (1, 2, "lora"),
    "skipping": (1, 1, "honest"),
    "stale": (1, 2, "stale"),
}
for name, (first, last, serves) in PEERS.items():
    settings = {
        "name": name,
        "implementation": "block_runtime.Blocks",
        "parameters": {"extra": {"first": first, "last": last, "serves": serves}},
        "inputs": [{"name": "X", "datatype": "FP32", "shape": [-1, -1, 576]}],
        "outputs": [{"name": "hidden", "datatype": "FP32", "shape": [-1, -1, 576]}],
    }
    folder = Path("peers") / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model-settings.json").write_text(json.dumps(settings, indent=2))

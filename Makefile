.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

# Releases whose frontends `make real-frontends` tests: one per supported line.
REAL_FRONTENDS = $(shell sed -n 's/^tag = "v\([^"]*\)".*/\1/p' compat.toml)
FUZZTIME ?= 20s
SOAK ?= 30m
BENCH ?= .
BENCHCOUNT ?= 6

# Of a release: make dist takes that of release/VERSION unless it is given.
VERSION ?=

LINT := $${VLLM_VCR_PEERS:-$${XDG_CACHE_HOME:-$$HOME/.cache}/vllm-vcr/peers}/lint/bin
DIST := go run ./internal/forge/dist
TOOL := go tool -modfile=tools/go.mod
GOTESTSUM := go tool gotestsum --format pkgname-and-test-fails --

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build the static binaries into bin/
	CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o bin/ ./cmd/...

.PHONY: test
test: ## run the tests; those whose peers are absent, and those that take long, are skipped
	$(GOTESTSUM) ./...

.PHONY: test-slow
test-slow: ## run all tests, those too that compile releases, build images and run workflows
	VLLM_VCR_SLOW=1 $(GOTESTSUM) ./...

.PHONY: test-starved
test-starved: ## run all tests with eight busy loops beside them, which they have to pass too
	scripts/starved $(GOTESTSUM) -count=1 -timeout 30m $(or $(PACKAGES),./...)

.PHONY: race
race: ## run the tests of every package under the race detector, which takes long
	CGO_ENABLED=1 go test -race -short -timeout 30m ./...

.PHONY: lint
lint: ## vet, gofumpt, staticcheck, actionlint, shellcheck, zizmor
	go vet ./...
	test -z "$$($(TOOL) gofumpt -l . | tee /dev/stderr)"
	$(TOOL) staticcheck ./...
	.ci/peers lint
	$(TOOL) actionlint -shellcheck=$(LINT)/shellcheck -pyflakes=
	$(LINT)/shellcheck --severity=warning $$(grep -lE -m 1 '^#!.*sh$$' .ci/* scripts/*)
	$(LINT)/zizmor --offline --quiet --min-severity medium .

.PHONY: fmt
fmt: ## format all Go code
	$(TOOL) gofumpt -w .

.PHONY: conform
conform: ## run the conformance suite of this repository
	go run ./cmd/vllm-vcr conform

# Fuzzing spends up to a minute on making one input smaller, in which nothing else is tried: of binary files it does little else.
.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (20s)
	@packages=$$(go list ./...); \
	for package in $$packages; do \
		listed=$$(go test -list '^Fuzz' "$$package"); \
		for target in $$(grep '^Fuzz' <<<"$$listed" || true); do \
			echo "== $$package $$target"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x "$$package"; \
		done; \
	done

.PHONY: soak
soak: ## load serve for SOAK (30m) with streams at its limits, faults, and ends of the frontend
	VLLM_VCR_SOAK=$(SOAK) go test ./cmd/vllm-vcr -run TestSoak -v -timeout 0

.PHONY: bench
bench: ## run the benchmarks matching BENCH (.) BENCHCOUNT (6) times and summarize them
	mkdir -p .cache
	go test -run '^$$' -bench '$(BENCH)' -benchmem -count $(BENCHCOUNT) ./... | tee .cache/bench.txt
	$(TOOL) benchstat .cache/bench.txt

.PHONY: peers
peers: ## install the real peers that the tests of a CI run need
	for kind in frontend s3 act lint image; do .ci/peers $$kind; done

.PHONY: kube-test
kube-test: ## install a real Kubernetes API server (6 minutes of CPU at first) and run the tests that talk to it
	.ci/peers kube
	export VLLM_VCR_REQUIRE_KUBE=1; \
	$(GOTESTSUM) -count=1 -run '^TestRealKube' ./cmd/vllm-vcr; \
	$(GOTESTSUM) -count=1 -run '^TestReal' ./internal/capture/cluster; \
	$(GOTESTSUM) -count=1 -run '^TestRealServer' ./internal/capture/deploy

.PHONY: real-frontends
real-frontends: ## install the frontends of all supported lines and test against each
	export VLLM_VCR_REQUIRE_PEERS=1 VLLM_VCR_SLOW=1 VLLM_VCR_FRONTENDS="$(REAL_FRONTENDS)"; \
	for kind in frontend s3 act lint image; do .ci/peers $$kind; done; \
	$(GOTESTSUM) -count=1 ./...

.PHONY: goldens
goldens: ## capture the goldens of LINE (0.33) again, or TARGETS of them, from real engines, see docs/capturing.md
	@test -n '$(LINE)' || { echo 'LINE is not given: make goldens LINE=0.33' >&2; exit 2; }
	go run ./cmd/vllm-vcr capture run --local --line '$(LINE)' $(TARGETS)

.PHONY: adopt-proof
adopt-proof: ## take the newest two lines out of a copy, and adopt them again from their wheels: network, 8 GB, twenty minutes
	scripts/adopt-proof

.PHONY: dist
dist: ## build the archives of a release, VERSION or that of release/VERSION, into dist/
	$(DIST) build $(if $(VERSION),-version $(VERSION))

.PHONY: release-files
release-files: ## build VERSION=1.2.3 and write its digests into release/, which are committed before the tag
	$(DIST) files -version $(VERSION)

.PHONY: pin-docs
pin-docs: ## let the workflows of the pages use the commit of the newest release, as the workflow release does
	scripts/pin-docs

.PHONY: dist-compare
dist-compare: ## compare dist/ with the digests in release/
	$(DIST) compare

.PHONY: reproducible
reproducible: ## build all targets twice, from two folders with a build cache each, and compare
	$(DIST) reproduce

.PHONY: image
image: ## build the container image of VERSION from dist/ into dist/image
	rm -rf dist/image
	scripts/image $(or $(VERSION),$$(cat release/VERSION)) dist/image "$$(git rev-parse HEAD)"

.PHONY: image-serve
image-serve: ## build the image of serve for RELEASE=0.33.0 of vLLM, and VERSION, from dist/ into dist/serve
	rm -rf dist/serve
	scripts/image-serve $(or $(VERSION),$$(cat release/VERSION)) $(RELEASE) dist/serve "$$(git rev-parse HEAD)"

.PHONY: ci
ci: ## everything that a change must pass
	.ci/run

.PHONY: clean
clean: ## remove what the targets above left in this folder
	rm -rf bin dist .cache

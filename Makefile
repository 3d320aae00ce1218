# The only entry points: people, CI and the documentation call these and nothing else.
.DEFAULT_GOAL := help
.PHONY: help demo test test-rust test-chart test-rest fuzz lint fmt build image release chart-package chart-readme \
  audit bench bench-fleet bench-profile pictures acceptance soak safety coverage nightly
.PHONY: lint-workflows cli-archive release-cli release-notes publish publish-sign
SHELL := /bin/bash

# In CI the lock file is law; at a desk a new dependency may change it.
LOCKED := $(if $(CI),--locked)
# Where cargo puts what it builds.
TARGET := $(or $(CARGO_TARGET_DIR),target)
# Where tests/tools/setup puts the tools; they come before others of the same name.
TOOLS := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/dependency-watchdog/bin
test test-rust test-chart test-rest lint fmt audit acceptance soak coverage nightly: export PATH := $(TOOLS):$(PATH)

help: ## Print this
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 22

demo: ## See a meltdown prevented and a crash loop cut short; needs only Rust. KEEP=1 leaves it running
	cargo build $(LOCKED) --bin demo --bin lease-probe --bin scaling-coordinator --bin weeder --bin watchdogctl
	$(TARGET)/debug/demo

test: ## All tests, also against real Kubernetes; brings the tools it needs
	tests/tools/setup test >/dev/null
	cargo build $(LOCKED) --workspace --bins --tests
	@# Side by side: most of each is waiting. What each prints is shown at its end.
	@$(MAKE) --no-print-directory --jobs --output-sync test-rust test-chart test-rest

test-rust:
	@# The plus: this one is shown while it runs.
	+cargo nextest run $(LOCKED) --workspace

test-chart:
	tests/chart/check

test-rest:
	@# They only compute, and give way to tests in real time.
	nice cargo test $(LOCKED) --workspace --doc
	nice fuzz/run 10 1

acceptance: ## Play the scenarios and faults on real Kubernetes; writes the page acceptance.md
	tests/tools/setup test >/dev/null
	cargo build $(LOCKED) --workspace --bins
	ACCEPTANCE_PAGE=$(CURDIR)/docs/contributing/acceptance.md \
	  cargo nextest run $(LOCKED) -p watchdog-e2e --no-fail-fast --test scenarios -E 'test(/^kubernetes::/)'

soak: ## Random incidents over 200 shoots; SECONDS=600
	tests/tools/setup test >/dev/null
	cargo build $(LOCKED) --workspace --bins
	SOAK_SECONDS=$(or $(SECONDS),600) cargo nextest run $(LOCKED) -p watchdog-e2e --no-capture --test nightly soak

coverage: ## Lines of services/ and proto/ that unit and in-process tests run through; writes the page coverage.md
	tests/tools/setup test >/dev/null
	tests/tools/coverage

safety: ## Judge the verdicts over HISTORIES=100000 simulated histories; writes the table of docs/explanation/safety.md
	HISTORIES=$(or $(HISTORIES),100000) SAFETY_PAGE=$(CURDIR)/docs/explanation/safety.md \
	  cargo test $(LOCKED) --release -p lease-probe --test simulation -- --nocapture --test-threads 1 \
	    kube_controller_manager_confirms false_verdicts_that_nobody_can_prevent

nightly: acceptance soak safety fuzz ## Long tests: the suite, 10 min of soak, 10 min of fuzzing, 10 chaos seeds
	REPLICAS_SHOOTS=1000 cargo nextest run $(LOCKED) -p watchdog-e2e --test replicas whole_seed
	CHAOS_SEEDS=$(or $(SEEDS),10) cargo nextest run $(LOCKED) -p watchdog-e2e --no-capture --test nightly chaos
	$(MAKE) audit || ! ls -d $(ADVISORIES)

fuzz: ## Fuzz everything that decodes foreign bytes, guided by coverage; SECONDS=600
	fuzz/run $(or $(SECONDS),600)

lint: ## Formatting, clippy, protos, language, REUSE, and the licenses, sources and use of dependencies
	tests/tools/setup lint >/dev/null
	tests/tools/lint-language
	cargo fmt --all --check
	cargo clippy $(LOCKED) --workspace --all-targets -- -D warnings
	buf lint
	buf format --diff --exit-code >/dev/null || { echo "run make fmt: the protos are not formatted" >&2; exit 1; }
	tests/tools/proto-breaking
	cargo deny $(LOCKED) check bans licenses sources
	cargo shear
	reuse lint --quiet || { reuse lint; exit 1; }

lint-workflows: ## Check the GitHub workflows with actionlint; needs GitHub, where its package fetches the program
	tests/tools/setup lint >/dev/null
	. tests/tools/lib.sh && environment="$$(python_environment)" && \
	  pip_install "$$environment" tests/tools/actionlint.txt && "$$environment/bin/actionlint"

fmt: ## Format Rust and protos
	tests/tools/setup lint >/dev/null
	cargo fmt --all
	buf format --write

build: ## Build every program, optimized
	@# Without the demo, whose tokio has what tests need.
	cargo build $(LOCKED) --workspace --exclude watchdog-e2e --bins --release

image: ## Build and test all images for amd64 and arm64 (ARCHS=…), without a container engine; needs root on Debian
	images/build
	cargo build $(LOCKED) --workspace --bins
	tests/images/check

release: ## Build a release from the checked-out tag, for images/attest sign. SOURCE_URL=…
	images/release

release-cli: ## Add watchdogctl for Linux and macOS and its krew manifest to the release of make release. SOURCE_URL=…
	.github/publish add-cli $(RELEASE) $(TARGET)/watchdogctl $(or $(SOURCE_URL),$(error set SOURCE_URL))

release-notes: ## Print the changelog of this version
	@.github/publish notes

cli-archive: ## Build watchdogctl for TRIPLE=aarch64-apple-darwin or another one and pack it for release-cli
	rustup target add $(or $(TRIPLE),$(error set TRIPLE))
	CARGO_PROFILE_RELEASE_STRIP=symbols cargo build --locked --release --package watchdogctl --target $(TRIPLE)
	.github/publish pack $(TARGET)/$(TRIPLE)/release/watchdogctl $(TRIPLE) $(TARGET)/watchdogctl

# Where images/release puts a release.
RELEASE := target/release-files

publish: ## Copy the images and the chart of a release to REGISTRY=registry.example.org/project; needs skopeo
	.github/publish push $(RELEASE) $(or $(REGISTRY),$(error set REGISTRY))

publish-sign: ## Sign what make publish has copied, and attach provenance and bills of materials; needs cosign
	.github/publish sign $(RELEASE) $(or $(REGISTRY),$(error set REGISTRY))

chart-readme: ## Write the chart's README, with the table of its values
	tests/tools/setup lint >/dev/null
	. tests/tools/lib.sh && "$$(python_environment)/bin/python" charts/generate-readme

chart-package: ## Pack the chart into target/charts: an archive for Helm, and an OCI archive for any registry
	tests/tools/setup lint >/dev/null
	. tests/tools/lib.sh && "$$(python_environment)/bin/python" charts/package $(TARGET)/charts

# What is measured and what measures it.
MEASURED := -p lease-probe -p scaling-coordinator -p weeder -p dependency-watchdog -p watchdog-bench

bench: ## Measure everything, optimized, in minutes; PRESET=full takes an hour. docs/explanation/performance.md
	$(if $(filter full,$(PRESET)),tests/tools/setup test >/dev/null)
	cargo build $(LOCKED) --release --bins $(MEASURED)
	tests/bench/run $(or $(PRESET),quick) $(TARGET)/release

bench-fleet: ## Start a simulated fleet and its seed alone, for any prober. ARGS="--shoots 500 --nodes 20 --real"
	$(if $(findstring --real,$(ARGS)),tests/tools/setup test >/dev/null)
	cargo build $(LOCKED) --release --bins $(MEASURED)
	$(TARGET)/release/probe-fleet serve $(ARGS)

bench-profile: ## Draw flamegraphs of the healthy state and of a loss into docs/explanation/performance; needs perf
	cargo build $(LOCKED) --release --bins $(MEASURED)
	tests/bench/profile $(TARGET)/release

pictures: ## Draw the dashboards into docs/reference/dashboards, as they are at the end of an incident in the sandbox
	cargo build $(LOCKED) --workspace --bins
	tests/chart/pictures/make

# Where cargo-deny keeps its copy of the advisories.
ADVISORIES := $(or $(CARGO_HOME),$(HOME)/.cargo)/advisory-dbs/advisory-db-*

audit: ## Look for known vulnerabilities in dependencies; without the network by the copy of an earlier run
	tests/tools/setup lint >/dev/null
	cargo deny $(LOCKED) fetch db || echo "the advisories cannot be fetched; taking the copy of an earlier run" >&2
	cargo deny $(LOCKED) --offline check advisories

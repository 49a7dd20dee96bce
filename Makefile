# `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
GO ?= go
TOOLS := $(CURDIR)/scripts/tools/go.mod
GOTOOL := $(GO) tool -modfile=$(TOOLS)
# The build's flags (lab/build) for every go command below: with others, Go's cache
# would hold, and compile, everything twice.
export GOFLAGS := $(strip $(GOFLAGS) -trimpath -tags=osusergo,netgo,sqlite_omit_load_extension)

NAME ?= lab
NODES ?=
PROFILE ?=
CLUSTER ?=
CONFORMANCE ?=
MUTANTS ?=
MINORS ?=
E2E ?=
LESSONS ?=
PACKAGES ?=
RUN ?=
SKIP ?=
BENCH ?=
SOAK ?=
COLD ?=
VULNDB ?=
CYCLES ?=
LABS ?=
PARALLEL ?=
BUNDLE ?= bin/ccmlab-bundle.tar.gz

# go_test NAME,PACKAGES,FLAGS runs tests. `make lint` vets. With FLAKY=DIR, as in CI,
# what fails is run once more by itself, and what passes then is named in DIR/NAME.
ifdef FLAKY
go_test = $(GOTOOL) gotestsum --format standard-quiet --rerun-fails=1 --rerun-fails-report='$(FLAKY)/$(1)' --packages="$(2)" -- -vet=off $(3)
else
go_test = $(GO) test -vet=off $(3) $(2)
endif

.PHONY: help
help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.PHONY: lab-up
lab-up: build ## Build what is missing and bring the lab up (CLUSTER=embedded|kind NAME=lab NODES=3 PROFILE=fast)
	@bin/lab up --name $(NAME) $(if $(CLUSTER),--cluster $(CLUSTER)) $(if $(NODES),--nodes $(NODES)) $(if $(PROFILE),--profile $(PROFILE))

.PHONY: lab-down
lab-down: bin/lab ## Take the lab down; nothing of it is left
	@bin/lab down --name $(NAME)

.PHONY: build
build: ## Build everything: our programs into bin/, upstream Kubernetes into bin/kube/
	@$(GO) run ./scripts/build

.PHONY: images
images: ## Build the images of fakecloud, ccm and hello, FROM scratch and offline, as archives for `docker load`
	@LAB_KUBE_BIN=$${LAB_KUBE_BIN:-none} $(GO) run ./scripts/build images

.PHONY: lab-image
lab-image: ## Build the image of a whole embedded lab into bin/lab-image.tar, for a container on any system; says how to run it
	@$(GO) run ./scripts/build lab-image

.PHONY: seat-image
seat-image: ## Build the image of a classroom's seat into bin/seat-image.tar, for a cluster (manifests/classroom); no image registry is needed
	@$(GO) run ./scripts/build seat-image

.PHONY: node-image
node-image: ## Build the image of kind nodes into bin/node-image.tar; no image registry is needed
	@$(GO) run ./scripts/node-image

.PHONY: bundle
bundle: build node-image ## Pack what a room without internet needs into one archive (BUNDLE=bin/ccmlab-bundle.tar.gz)
	@bin/lab bundle $(BUNDLE)

bin/lab:
	@$(MAKE) --no-print-directory build

# Each wait of a test has a bound of its own. TEST_TIMEOUT is that of all the tests of a
# package together, for a machine that is several times as slow as ours: lab/e2e takes minutes.
TEST_TIMEOUT := 60m

# nested_tests runs the tests of the modules that ./... does not reach.
define nested_tests
cd lab/demoserver && $(call go_test,demoserver,./...)
cd lab/kube && CGO_ENABLED=0 $(call go_test,kube,./... github.com/fsnotify/fsnotify,-timeout $(TEST_TIMEOUT))
endef

.PHONY: test
test: build ## Run all tests, with what the build has compiled; those of lab/e2e run labs of their own
	@# ./lab/e2e takes longest, and mostly waits: it comes first, and others have all processors beside it.
	$(call go_test,unit,./lab/e2e ./...,-p $$(($$(nproc) + 1)) -timeout $(TEST_TIMEOUT))
	$(nested_tests)

# all_but_labs are the packages whose tests bring no labs up.
all_but_labs = $$($(GO) list ./... | grep -v /lab/e2e$$)

.PHONY: test-packages
test-packages: build ## Run all tests but those of lab/e2e
	$(call go_test,unit,$(all_but_labs),-p $$(($$(nproc) + 1)) -timeout $(TEST_TIMEOUT))
	$(nested_tests)

.PHONY: test-race
test-race: build ## Run the tests with the race detector, for which nearly everything is compiled once more; without lab/e2e, whose labs are processes (PACKAGES=)
	$(call go_test,race,$(or $(PACKAGES),$(all_but_labs)),-race -timeout $(TEST_TIMEOUT))
	cd lab/demoserver && $(call go_test,demoserver-race,./...,-race)
	cd lab/kube && $(call go_test,kube-race,./... github.com/fsnotify/fsnotify,-race -timeout $(TEST_TIMEOUT))

# labs_test runs those tests of lab/e2e that RUN and SKIP choose.
labs_test = $(call go_test,labs,./lab/e2e,-timeout $(TEST_TIMEOUT) -v -run '$(or $(RUN),$(1))' $(if $(SKIP),-skip '$(SKIP)'))

.PHONY: test-labs
test-labs: build ## Run the tests that bring labs up (RUN='TestLifecycle|TestResume' SKIP=TestClassroom)
	$(call labs_test,.)

.PHONY: axe
axe: ## Fetch axe-core, with which tests check that nobody is kept out of the lab's page; needs npm
	@npm install --loglevel=error --no-save --no-audit --no-fund --no-update-notifier --prefix bin/axe axe-core@4.14.1

.PHONY: screenshots
screenshots: build ## Picture the states of the lab's page that its tests bring about, into bin/screenshots; needs chromium
	@$(GO) test -count 1 -timeout 10m -run 'TestPage|TestForty|TestSixty|TestKeys|TestCalls' ./lab/console -args -pictures $(CURDIR)/bin/screenshots

.PHONY: everything
everything: ## Run all that CI runs, the whole of its rotation; as root it also installs what that needs, and tries kind. An hour
	@.ci/run everything

.PHONY: test-kind
test-kind: build node-image lab-image ## Run the tests that need Docker: kind clusters, and a lab in a container (RUN=TestKindNodes)
	LAB_TEST_KIND=1 $(call labs_test,TestKind)

.PHONY: conformance
conformance: build ## Say whether our CCM behaves, with reports in bin/conformance (CONFORMANCE="--profile Node …")
	@bin/lab conformance --report-dir bin/conformance $(CONFORMANCE)

.PHONY: lessons-site
lessons-site: build ## Write the lessons as pages for a browser, into bin/lessons-site
	@bin/lab lesson site bin/lessons-site

.PHONY: test-minors
test-minors: build ## Say whether our CCM behaves on the other Kubernetes minors that it supports: builds their control planes, and runs the suite (MINORS="v1.35 -- --profile Node")
	@$(GO) run ./scripts/minors $(MINORS)

.PHONY: test-e2e
test-e2e: build node-image ## Run Kubernetes' own end-to-end tests of load balancers on a kind cluster; the first time builds them (E2E="-focus REGEXP -procs 4 -keep -lab NAME")
	@$(GO) run ./scripts/test-e2e $(E2E)

.PHONY: test-oci-sdk
test-oci-sdk: ## Have Oracle's TypeScript SDK, which npm fetches, judge the cloud's dialect of Oracle's API; half a minute
	@# Upstream Kubernetes is not needed for it.
	@LAB_KUBE_BIN=$${LAB_KUBE_BIN:-none} $(GO) run ./scripts/build
	@scripts/test-oci-sdk

.PHONY: test-hcloud
test-hcloud: ## Have Hetzner's Python SDK and command line, as Debian has them, use the cloud's dialect of Hetzner's API; a few seconds
	@LAB_KUBE_BIN=$${LAB_KUBE_BIN:-none} $(GO) run ./scripts/build
	@scripts/test-hcloud

.PHONY: lessons
lessons: build ## Type the solutions of every lesson, and see that each is what it should be (LESSONS="--ways --parallel 3 ID...")
	@bin/lab lesson verify $(LESSONS)

.PHONY: mutants
mutants: build ## Prove that the conformance suite can fail: it must catch each of our CCM's mutants (MUTANTS="-quick|-beside -parallel N NAME…")
	@$(GO) run ./scripts/mutants $(MUTANTS)

.PHONY: rings
rings: build ## Take each ring off our CCM in turn, and write what fails without it into ccm/README.md (RINGS="without-guard …")
	@$(GO) run ./scripts/mutants -rings $(RINGS)

.PHONY: ccm-without
ccm-without: ## Build our CCM without one of its rings (RING=guard), for `lab ccm use`, and print the program's path
	@$(GO) run ./scripts/mutants -build without-$(RING)

.PHONY: fuzz
fuzz: ## Fuzz what the cloud reads from strangers, each target for FUZZTIME=30s
	@for target in server.FuzzRequests server.FuzzFilters server.FuzzPageTokens dialect.FuzzRequests dns.FuzzPackets \
	  cli.FuzzManifest; do \
	  $(GO) test -run '^$$' -fuzz "^$${target#*.}$$" \
	    -fuzztime $(or $(FUZZTIME),30s) -fuzzminimizetime 1x ./fakecloud/$${target%.*} || exit 1; \
	done

.PHONY: soak
soak: ## Send a million small connections through load balancers, or as many as ten minutes allow: it says which (SOAK="-connections 100000 -for 2m …")
	@$(GO) test -count 1 -v -timeout 1h -run '^TestSoak$$' ./fakecloud/dataplane/soak \
	  -connections 1000000 -clients 64 -for 10m $(SOAK)

.PHONY: lint
lint: ## Check format and style
	lint=$$($(GOTOOL) -n golangci-lint) && $$lint run ./... && (cd lab/demoserver && $$lint run ./...) && cd lab/kube && CGO_ENABLED=0 $$lint run ./...

.PHONY: vulncheck
vulncheck: ## Look up what every module is made of in Go's vulnerability database (VULNDB=latest: the newest)
	@scripts/vulncheck $(VULNDB)

.PHONY: reproducible
reproducible: ## Build our programs and images from the commit twice: they must be the same (COLD=1 compiles everything once more)
	@COLD=$(COLD) scripts/reproducible

.PHONY: generate
generate: ## Regenerate all generated code
	$(GO) generate ./...

.PHONY: bench-up
bench-up: build ## Measure bringing the lab up and down, and its memory (CLUSTER=embedded|kind ROUNDS=5)
	@CLUSTER=$(CLUSTER) scripts/bench-up

.PHONY: bench-labs
bench-labs: build ## Measure many small labs side by side: memory, processes, seconds, idle CPU (LABS=20 NODES=1 PARALLEL=1)
	@LABS=$(LABS) NODES=$(NODES) PARALLEL=$(PARALLEL) scripts/bench-labs

.PHONY: chaos
chaos: build ## Break a lab without pause, from a seed, and look at what must hold (FOR=30m SEED=7; CHAOS=-rapid.shrinktime=20m)
	@$(GO) test -v -count=1 -timeout=0 -run='^TestChaos$$' ./scripts/chaos -for=$(or $(FOR),5m) -rapid.nofailfile \
		-rapid.shrinktime=10m $(if $(SEED),-rapid.seed=$(SEED)) $(CHAOS)

.PHONY: soak-up
soak-up: build ## Bring a lab up and down again and again, and say what is left: nothing must be (CYCLES=50 NODES=3)
	@CYCLES=$(CYCLES) NODES=$(NODES) CLUSTER=$(CLUSTER) scripts/soak-up

.PHONY: bench-cloud
bench-cloud: ## Measure fakecloud's API (BENCH="-count 10")
	@$(GO) test -run '^$$' -bench '^BenchmarkAPI$$' ./fakecloud $(BENCH)

.PHONY: bench-dataplane
bench-dataplane: ## Measure fakecloud's load balancers of both kinds, and a target without any (BENCH="-count 10")
	@$(GO) test -run '^$$' -bench '^BenchmarkBalancers$$' ./fakecloud/dataplane $(BENCH)

.PHONY: bench-ccm
bench-ccm: build ## Measure a CCM at a thousand nodes, ours beside itself without cache and in upstream's defaults; ten minutes (BENCH="-quick -rows init -alone -o json")
	@$(GO) run ./lab/bench $(BENCH)

# Verbena. `make help` lists the targets.

GO          ?= go
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
FUZZTIME    ?= 30s
BIN         := $(CURDIR)/bin
VM          := $(BIN)/verbena-vm

# Packages whose tests need an RDMA device: run in the VM, one boot each.
VM_PACKAGES := ./transport/rdma ./transport/rdma/internal/qpstate ./transport/rdma/internal/verbs/ibverbs ./transport/rdma/internal/verbs/uverbs ./internal/e2e ./internal/faults ./bench

# Processes that share the seeds of `make sim`; each world uses one processor.
SIM_JOBS := $(shell nproc 2>/dev/null || echo 2)

# Deadlines: of one package on the host, of one package in the VM.
TEST_TIMEOUT := 10m
VM_TIMEOUT   := 15m

.DEFAULT_GOAL := help
.PHONY: help setup build generate lint cross unit sim faults vm examples test bench bench-connect bench-failover bench-scale floors peers perf-check peers-test report fuzz clean

help: ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VM) ## install what tests and benchmarks need (QEMU, a kernel, perftest, libfabric); says what
	@$(VM) setup

build: $(VM) ## build the commands into bin/
	$(GO) build -o $(BIN)/ ./cmd/protoc-gen-go-verbena ./bench ./examples/...

generate: ## regenerate stubs from .proto files (needs protoc)
	$(GO) generate ./...

lint: ## gofmt, go vet and staticcheck
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "not gofmt-ed: $$unformatted"; exit 1; }
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...

cross: ## compile for every supported platform, with TCP and rdma_rxe where there is no cgo
	@for target in linux/amd64 linux/arm64 darwin/arm64 windows/amd64; do \
	  echo "CGO_ENABLED=0 $$target"; \
	  CGO_ENABLED=0 GOOS=$${target%/*} GOARCH=$${target#*/} $(GO) build ./... || exit 1; \
	  CGO_ENABLED=0 GOOS=$${target%/*} GOARCH=$${target#*/} $(GO) vet ./... || exit 1; \
	done

unit: ## unit tests and conformance suites on the simulated device, under the race detector
	env -u VERBENA_REQUIRE_RDMA $(GO) test -race -timeout $(TEST_TIMEOUT) ./...

sim: ## simulated worlds full of faults: SEEDS=n of them (default 1000), or SEED=k alone, with its trace
	$(GO) test -count=1 -v -timeout 0 -run '^TestWorlds$$' ./transport/rdma/internal/sim \
	  $(if $(SEED),-sim.seed=$(SEED) -sim.seeds=1 -sim.tries=100 -sim.trace,-sim.seeds=$(or $(SEEDS),1000) -sim.jobs=$(SIM_JOBS))

faults: setup ## real faults under calls, in the VM: FAULTS=n of them (default 500), SEED=k, ONLY=regexp, DEDICATED=-1 for links that share; table in fault-results/
	$(GO) test -count=1 -v -timeout 0 -run '^TestFaults$$' -exec "$(VM) run -timeout 3h -out /out/=$(CURDIR)/fault-results --" \
	  ./internal/faults -faults $(or $(FAULTS),500) -seed $(or $(SEED),0) -only '$(ONLY)' -dedicated $(or $(DEDICATED),0) -out /out

vm: $(VM) ## the suites that need a real RDMA device, in the VM
	@if $(VM) check; then \
	  VERBENA_REQUIRE_RDMA=1 $(GO) test -count=1 -p 1 -timeout $(TEST_TIMEOUT) -exec "$(VM) run -timeout $(VM_TIMEOUT) --" $(VM_PACKAGES); \
	elif [ -n "$$VERBENA_REQUIRE_RDMA" ]; then \
	  echo "the VM suites may not be skipped here (VERBENA_REQUIRE_RDMA is set)"; exit 1; \
	else \
	  echo "SKIPPED: the VM suites, for the reason above"; \
	fi

examples: build ## run the examples as separate processes, over tcp here and over rdma in the VM
	examples/run.sh $(BIN) 127.0.0.1
	@if $(VM) check; then \
	  $(VM) run -timeout $(VM_TIMEOUT) -- examples/run.sh $(BIN) 10.8.1.1 rdma; \
	elif [ -n "$$VERBENA_REQUIRE_RDMA" ]; then \
	  echo "the examples over rdma may not be skipped here (VERBENA_REQUIRE_RDMA is set)"; exit 1; \
	else \
	  echo "SKIPPED: the examples over rdma, for the reason above"; \
	fi

test: $(VM) ## all tests; installs what is missing, and says what it had to skip where it cannot
	@$(VM) setup || echo "setup did not succeed: what needs a device is skipped, with its reason"
	@$(MAKE) --no-print-directory unit vm examples

bench: setup build ## one table: echo calls over rdma and tcp in the VM, beside perftest and libfabric
	@$(VM) run -timeout $(VM_TIMEOUT) -out /out/=$(CURDIR)/bench-results -- $(BIN)/bench run -json /out/bench.json $(BENCH_FLAGS)

bench-connect: setup build ## time to the first call in the VM, with QPs from the pool and without
	@$(VM) run -timeout $(VM_TIMEOUT) -out /out/=$(CURDIR)/bench-results -- $(BIN)/bench connect -json /out/connect.json $(BENCH_FLAGS)

bench-failover: setup build ## how long calls are without a link in the VM when one dies, with another standing by and without
	@$(VM) run -timeout $(VM_TIMEOUT) -out /out/=$(CURDIR)/bench-results -- $(BIN)/bench failover -json /out/failover.json $(BENCH_FLAGS)

bench-scale: build ## what thousands of connections cost over TCP here, idle and under calls; SCALE_FLAGS="-connections 1,64"
	@mkdir -p bench-results
	$(BIN)/bench scale -transport tcp -json bench-results/scale.json $(SCALE_FLAGS)

floors: ## hold the floors against perftest; by hand, for they need a quiet machine
	@for try in 1 2 3; do \
	  $(MAKE) --no-print-directory bench BENCH_FLAGS="-sizes 64 -callers 1,64 -rounds 5 -check" && exit 0; \
	  echo "try $$try of 3 was below"; \
	done; exit 1

peers: $(BIN)/peers ## the same echo calls by other RPC libraries and bare sockets, over TCP here, in turn (10 minutes)
	@mkdir -p bench-results
	$(BIN)/peers run -json bench-results/peers.json $(PEERS_FLAGS)

perf-check: ## hold the ratios to other libraries and to bare sockets; by hand, for they need a quiet machine
	@$(MAKE) --no-print-directory peers PEERS_FLAGS="-check $(PEERS_FLAGS)"

peers-test: ## build and vet the comparison with other libraries, and let each make a few calls
	@if cd bench/peers && $(GO) mod download; then \
	  $(GO) vet ./... && $(GO) test -count=1 -timeout $(TEST_TIMEOUT) ./...; \
	else \
	  echo "SKIPPED: the comparison with other libraries, for its modules cannot be had: the reason is above"; \
	fi

report: build ## one HTML page with charts of what is in bench-results/
	$(BIN)/bench report -o bench-results/report.html bench-results/*.json

fuzz: ## run every fuzz target for FUZZTIME (default 30s)
	@.ci/fuzz $(FUZZTIME)

clean: ## remove what was built here (the cache of downloads stays)
	rm -rf $(BIN) bench-results fault-results

# Go itself knows best whether it is up to date.
.PHONY: $(BIN)/peers
$(BIN)/peers:
	cd bench/peers && $(GO) build -o $@ .

$(VM): $(shell find internal/vm cmd/verbena-vm -name '*.go' 2>/dev/null) go.mod
	@mkdir -p $(BIN)
	CGO_ENABLED=0 $(GO) build -o $@ ./cmd/verbena-vm

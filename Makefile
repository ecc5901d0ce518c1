# Everyday commands. `make help` lists them; each is one or two lines that you can also type yourself.

export GOFSDP_LIB ?= $(CURDIR)/build/libgofsdp.so

GO        ?= go
BIN       := build/bin
# The libtorch releases that gofsdp supports, and the packages that touch libtorch.
TORCH_VERSIONS ?= 2.11.0 2.12.1 2.13.0
TORCH_TESTS := ./internal/capi ./torch/... ./dist/... ./quant/... ./models/... ./fsdp/...
RACE      := ./accelerate/... ./checkpoint/... ./data/... ./dist/... ./internal/... ./torch ./torch/nn ./torch/optim
RACE_LONG := ./fsdp/... ./sft/... ./torch/...
FUZZTIME  ?= 20s
BENCH     ?= .
STATICCHECK_VERSION := v0.8.2
STATICCHECK := $(shell $(GO) env GOCACHE)/gofsdp-tools/$(STATICCHECK_VERSION)/staticcheck

.PHONY: help quickstart setup build test test-long ctest versions embed bench gobench interop compat-test nocgo lint fuzz asan race race-long generate clean

help: ## list these commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

quickstart: build ## set up, build, and fine-tune a small model on two CPU ranks
	scripts/quickstart

setup: ## download libtorch (once per user) and build build/libgofsdp.so
	$(GO) run ./cmd/gofsdp setup

build: setup ## set up and build the programs into build/bin
	$(GO) build -o $(BIN)/ ./cmd/...

test: setup ctest ## vet and the tests, Go and C++
	$(GO) vet ./...
	$(GO) test ./...

test-long: setup ctest ## the same with the slow tests: all golden steps, soak, hundreds of kills
	$(GO) vet -tags long ./...
	GOFSDP_LONG=1 $(GO) test -tags long -timeout 60m ./...

ctest: setup ## the C++ tests
	cmake --build build -j2 --target gofsdp_tests
	cd build && ctest --output-on-failure

versions: ## the tests that touch libtorch, against every release of TORCH_VERSIONS
	@for version in $(TORCH_VERSIONS); do \
	  echo "=== libtorch $$version"; \
	  $(GO) run ./cmd/gofsdp setup --torch-version $$version --build-dir build/torch-$$version || exit 1; \
	  GOFSDP_LIB=$(CURDIR)/build/torch-$$version/libgofsdp.so $(GO) test -count=1 $(TORCH_TESTS) || exit 1; \
	done

embed: setup ## go get, set-up and run of a service of its own, from a module zip in an empty home
	$(GO) test -tags long -count=1 -run Embedding ./cmd/gofsdp

bench: build ## the cost of one call, of sharding itself, and the same training, with gofsdp and with PyTorch: ARGS=--help
	cmake --build build --target calls_bench
	$(GO) run ./bench/calls
	$(GO) run ./bench/fsdp
	$(GO) run ./bench $(ARGS)

gobench: setup ## Go benchmarks: BENCH=<regexp> picks some; compare two runs with benchstat
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem ./...

interop: build ## read our files with transformers, PEFT and PyTorch, and theirs with ours
	$(GO) run ./interop $(ARGS)

compat-test: setup ## the tests of compat/gotorch, or gotorch's own on it: GOTORCH_SRC=<a checkout>
	scripts/compat-test $(GOTORCH_SRC)

nocgo: ## build without cgo: everything compiles, and tensors give a clear error
	CGO_ENABLED=0 $(GO) build ./...
	CGO_ENABLED=0 $(GO) test -run WithoutCgo ./torch

lint: $(STATICCHECK) ## gofmt, go vet, staticcheck
	@files=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$files" || { echo "run gofmt -w on: $$files"; exit 1; }
	$(GO) vet ./...
	$(STATICCHECK) ./...
	cd compat/gotorch && $(GO) vet ./... && $(STATICCHECK) ./...

$(STATICCHECK): # into the cache, once per user: it takes a minute to build
	GOBIN=$(@D) $(GO) install honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK_VERSION)

fuzz: ## every fuzz target for FUZZTIME each
	@for package in $$($(GO) list ./...); do \
	  for target in $$($(GO) test -list '^Fuzz' $$package | grep '^Fuzz'); do \
	    echo "$$package $$target"; \
	    $(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) $$package || exit 1; \
	  done; \
	done

asan: ## the C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
	$(GO) run ./cmd/gofsdp setup --build-dir build/asan --asan --werror
	cmake --build build/asan -j2 --target gofsdp_tests
	cd build/asan && ctest --output-on-failure

race: setup ## the race detector on the packages that share memory
	$(GO) test -race $(RACE)

race-long: race ## and on the slow ones, half an hour
	$(GO) test -race -timeout 60m $(RACE_LONG)

generate: setup ## write torch/aten anew, from the operators of the libtorch that is installed
	$(GO) run ./internal/opsgen -dump internal/opsgen/schemas.txt
	$(GO) generate ./torch/aten

clean: ## remove everything that was built here (libtorch stays in the cache)
	rm -rf build

# Everything that is done with this project is a target here; CI runs the same ones.

SHELL := /bin/bash
.DEFAULT_GOAL := all

VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null)
REVISION ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null)
LDFLAGS  := -X main.version=$(VERSION) -X main.revision=$(REVISION)
BIN      := bin/loadmonitor

# The demo's size and length; 0 means until it is interrupted.
WORKERS  ?= 8
RANKS    ?= 4
DURATION ?= 0

# Packages with heavy cases: files with the build tag cases.
HEAVY = $(shell grep -rl --include='*_test.go' '^//go:build cases' . | xargs -n1 dirname | sort -u)

EXECUTIONS ?= 10000000

# What buf compares the contracts with.
AGAINST ?= .git\#branch=main

BUF := tools/buf/node_modules/.bin/buf

.PHONY: all
all: build lint test ## build, lint and test

.PHONY: help
help: ## show this
	@awk -F':.*## ' '/^[a-zA-Z_-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: deps
deps: ## install what the build needs and is missing (libzmq, a C compiler)
	@tools/deps

.PHONY: build
build: deps ## build bin/loadmonitor
	go build -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/loadmonitor

.PHONY: demo
demo: build ## run a monitor and a simulated fleet (WORKERS, RANKS, DURATION=20s)
	$(BIN) demo --workers $(WORKERS) --ranks $(RANKS) --duration $(DURATION)

.PHONY: test
test: deps ## run the tests
	go test ./...

.PHONY: race
race: deps ## run the tests under the race detector
	go test -race ./...

.PHONY: cases
cases: deps ## run what takes long: heavy cases, 10,000 random histories under the race detector
	go test -tags cases -count=1 -p 1 -timeout 1h -v -run '^TestHeavy_' $(HEAVY)
	go test -race -tags cases -count=1 -timeout 6h -v -run '^TestHistories_TenThousand$$' ./internal/integration

.PHONY: fuzz
fuzz: deps ## fuzz the decoders of ZMQ messages, EXECUTIONS of each
	go test -run '^$$' -fuzz '^FuzzFrames$$' -fuzztime $(EXECUTIONS)x ./bridge/zmq
	go test -run '^$$' -fuzz '^FuzzPayload$$' -fuzztime $(EXECUTIONS)x ./bridge/zmq

.PHONY: interop
interop: build ## run stock Python peers and the load publisher of SGLang releases against the binary
	@tools/deps python3-grpcio python3-grpc-tools python3-pip
	@internal/interop/sglang_fetch .cache/sglang
	go test -tags interop -count=1 ./internal/interop

# quick takes a few minutes, full about an hour.
BENCH ?= quick

.PHONY: bench
bench: build ## measure next to ceilings (BENCH=quick or full) and write bench/results
	go build -o bin/bench ./bench
	bin/bench -mode $(BENCH) $(if $(filter full,$(BENCH)),-docs docs/performance.md)

.PHONY: lint
lint: deps ## vet, staticcheck, gofmt, and buf lint where npm is there
	go vet -tags cases,interop ./...
	go tool -modfile=tools/staticcheck/go.mod staticcheck -tags cases,interop ./...
	@unformatted=$$(git ls-files '*.go' | grep -v '^gen/' | xargs gofmt -l); \
	  if [ -n "$$unformatted" ]; then echo "gofmt would change: $$unformatted"; exit 1; fi
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory proto-lint; else echo "npm is missing: contracts not linted"; fi

$(BUF): tools/buf/package-lock.json
	npm ci --prefix tools/buf --no-audit --no-fund --silent
	@touch $@

.PHONY: proto-lint
proto-lint: $(BUF) ## lint the contracts and compare them with AGAINST for breaking changes
	$(BUF) lint
	$(BUF) breaking --against '$(AGAINST)'

.PHONY: gen
gen: $(BUF) ## generate gen/ from proto/
	$(BUF) generate

.PHONY: clean
clean: ## remove what was built
	rm -rf bin

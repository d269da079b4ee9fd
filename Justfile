# difyrt: build, test, measure. `just` alone lists the recipes.

export CGO_ENABLED := "0"

_default:
    @just --list

# the executable, stripped, in bin/
build:
    .ci/build "$(go env GOARCH)" full bin/difyrt

# the flavour for images: without the control plane
build-sandbox:
    .ci/build "$(go env GOARCH)" sandbox bin/difyrt-sandbox
    @stat -c '%n: %s bytes' bin/difyrt-sandbox

# all tests
test:
    go test ./...

# all tests with the race detector, which wants a C compiler
race:
    CGO_ENABLED=1 go test -race ./...

# ours against what the kernel itself costs, in one run
bench:
    go test -run '^$' -bench . -benchtime 1x -timeout 30m ./applets/endtoend
    go test -run "^$" -bench . -timeout 30m ./runtime/...

# 10,000 short jobs, a home of 100,000 files and 10 GiB: no lost line, no leak (some minutes, 25 GB of disk)
soak:
    DIFYRT_SOAK=10000 go test -run Soak -timeout 30m -v ./applets/endtoend
    DIFYRT_SOAK=1 go test -run Soak -timeout 30m -v ./runtime/snapshot

# a minute of each fuzz test
fuzz:
    #!/bin/sh
    set -e
    for f in $(grep -rl --include='*_test.go' 'func Fuzz' runtime); do
        for name in $(sed -n 's/^func \(Fuzz[A-Za-z]*\).*/\1/p' "$f"); do
            go test -run '^$' -fuzz "^$name\$" -fuzztime 60s -fuzzminimizetime 1x "./$(dirname "$f")"
        done
    done

# gofmt, go vet, staticcheck
lint:
    test -z "$(gofmt -l .)"
    go vet ./...
    go vet -tags sandbox ./...
    go run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...

# the black-box suite beside this repository
conformance: build
    python3 ../shared/conformance/run.py --bin bin/difyrt

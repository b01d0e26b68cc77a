#!/bin/sh
# Runs the examples as processes of their own and checks what comes back.
#
#	examples/run.sh BIN ADDRESS [KIND]
#
# BIN is the folder with the built examples, ADDRESS where the servers listen,
# KIND ("rdma" or "tcp") what must have carried the calls of echo.
set -eu
bin=$1 addr=$2 kind=${3:-}
dir=$(mktemp -d)
servers=
cleanup() {
	for pid in $servers; do kill "$pid" && wait "$pid" || status=1; done
	rm -rf "$dir"
	exit "$status"
}
status=1
trap cleanup EXIT

# until_up runs a client until its server listens.
until_up() {
	tries=0
	until "$@" 2>"$dir/err"; do
		tries=$((tries + 1))
		if [ $tries -gt 100 ]; then cat "$dir/err" >&2; return 1; fi
		sleep 0.1
	done
}

"$bin/echo" -listen "$addr:7400" & servers="$servers $!"
"$bin/blockstore" -listen "$addr:7401" -file "$dir/blocks" & servers="$servers $!"

until_up "$bin/echo" -addr "$addr:7400" -n 200 hello | tee "$dir/out"
grep -q "$kind" "$dir/out"
"$bin/echo" -addr "$addr:7400" -n 200 -tcp hello

head -c 100000 /dev/urandom >"$dir/block"
until_up "$bin/blockstore" -addr "$addr:7401" put 7 <"$dir/block"
"$bin/blockstore" -addr "$addr:7401" get 7 | cmp - "$dir/block"
"$bin/blockstore" -addr "$addr:7401" delete 7
if "$bin/blockstore" -addr "$addr:7401" get 7 2>"$dir/err"; then
	echo "a deleted block is still there" >&2
	exit 1
fi
grep -q "not found" "$dir/err" || { cat "$dir/err" >&2; exit 1; }
echo "blockstore: put, got back, and deleted 100000 bytes"
status=0

#!/bin/bash
# What cistern does when a store stops keeping put-if-absent: a real radosgw, of whose bucket versioning is switched on while a volume is served.
#
#   xtask/servers/rule_ends.sh BIN
#
# Prints after how many seconds of writing the writer stopped (a minute is allowed), and whether a later opening and a new volume are refused; fails
# if one of the three is not so. Needs root on Debian 12, curl, nbdcopy.
set -euo pipefail
BIN=$(readlink -f "${1:?path of cistern}")
PORT=$((RANDOM % 5000 + 12000))
WORK=$(mktemp -d)
PIDS=()
finish() {
    kill -9 "${PIDS[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$WORK"
}
trap finish EXIT
export AWS_ENDPOINT_URL=http://127.0.0.1:$PORT AWS_ACCESS_KEY_ID=cistern AWS_SECRET_ACCESS_KEY=cistern-secret
export AWS_REGION=us-east-1 AWS_EC2_METADATA_DISABLED=true STATE_DIRECTORY=$WORK/state CACHE_DIRECTORY=$WORK/cache

mkdir "$WORK/radosgw"
"$(dirname "$0")/radosgw.sh" "$WORK/radosgw" "$PORT" cistern cistern-secret >"$WORK/radosgw.log" 2>&1 &
PIDS+=($!)
signed() {
    curl --silent --fail --max-time 10 --aws-sigv4 aws:amz:us-east-1:s3 --user cistern:cistern-secret \
        --header 'x-amz-content-sha256: UNSIGNED-PAYLOAD' --request PUT "$@"
}
for _ in $(seq 300); do
    kill -0 "${PIDS[0]}" || { tail -n 5 "$WORK/radosgw.log"; exit 1; }
    signed "$AWS_ENDPOINT_URL/tank" && break
    sleep 1
done

URL=s3://tank/vol
"$BIN" create "$URL" --size 256M >"$WORK/create" 2>&1 || { cat "$WORK/create"; exit 1; }
"$BIN" serve "$URL" --state-dir "$WORK/state" --cache-dir "$WORK/cache" --journal-size 64M --cache-size 16M --max-dirty-age 1s \
    --listen "unix:$WORK/sock" >"$WORK/serve.log" 2>&1 &
PIDS+=($!)
head -c 64K /dev/urandom >"$WORK/data"
write() { nbdcopy --flush "$WORK/data" "nbd+unix:///vol?socket=$WORK/sock" 2>"$WORK/refused"; }
for _ in $(seq 300); do
    write && break
    sleep 0.1
done
write || { cat "$WORK/serve.log"; exit 1; }
signed --data '<VersioningConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Status>Enabled</Status></VersioningConfiguration>' \
    "$AWS_ENDPOINT_URL/tank?versioning="
begin=$SECONDS
while write && [ $((SECONDS - begin)) -le 60 ]; do sleep 0.1; done
stopped=$((SECONDS - begin))
[ "$stopped" -le 60 ] || { echo "WRONG: it goes on writing"; exit 1; }
grep -o "the store overwrites what it has to keep[^.]*" "$WORK/serve.log" | head -1
kill "${PIDS[1]}"
wait "${PIDS[1]}" || true
for refused in "serve $URL --take-over --state-dir $WORK/state-b --listen unix:$WORK/b" "create s3://tank/other --size 1G"; do
    # shellcheck disable=SC2086
    if timeout 60 "$BIN" $refused >"$WORK/out" 2>&1 || ! grep -q "overw" "$WORK/out"; then
        echo "WRONG: not refused: $refused"
        cat "$WORK/out"
        exit 1
    fi
done
echo "stopped after $stopped s of writing; opening it and creating another volume are refused"

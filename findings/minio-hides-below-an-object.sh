#!/usr/bin/env bash
# On MinIO, an object named like a directory hides what lies below that directory from some listings, and not from others.
#
# Guess before it was run: keys are flat in S3, so beside "tank/b/a" an object "tank" changes nothing. If a server that keeps objects as files does
# hide "tank/b/a" then, every listing hides it, and so a listing of "tank/b/" tells whether the listing of "tank/" is whole.
# Seen with MinIO of 2026-02-12 (Go module v0.0.0-20260212201848-7aac2a2c5b7c), one directory, on loopback: both objects are stored with 200, and
# GET gives both. A listing of "tank/" is then empty and calls itself complete, one of everything has "tank" alone, and one with a delimiter has no
# "tank/". A listing of "tank/b/" has "tank/b/a" all the same. Once "tank" is deleted, the listing of "tank/" has it again. A client that asks by one
# listing whether another one is whole is told what is not so: it has to ask as the one asks that relies on it.
#
# Needs Go, curl 7.76 or newer, and a Go module proxy; building takes minutes. Uses no other network than loopback.
set -euo pipefail
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || tail -3 "$dir/log"; wait; chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
GOBIN="$dir/bin" go install github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c
port=$((RANDOM % 5000 + 12000))
mkdir "$dir/data"
MINIO_ROOT_USER=user MINIO_ROOT_PASSWORD=password "$dir/bin/minio" server --quiet --address "127.0.0.1:$port" \
    --console-address "127.0.0.1:$((port + 1))" "$dir/data" > "$dir/log" 2>&1 &
server=$!
url=http://127.0.0.1:$port/bucket
signed=(--silent --max-time 20 --aws-sigv4 aws:amz:us-east-1:s3 --user user:password -H "x-amz-content-sha256: UNSIGNED-PAYLOAD")
for _ in $(seq 60); do
    kill -0 "$server"
    curl "${signed[@]}" --fail --output /dev/null --request PUT "$url" && break
    sleep 1
done
# The keys and the directories of a listing, in one line. curl signs the query as it is: it has to be sorted.
list() { curl "${signed[@]}" --fail "$url?$1" | grep -oE "<(Key|Prefix)>[^<]+" | sed 's/.*>//' | sort -u | grep -vxF "${2:-}" | tr '\n' ' '; }
put() { curl "${signed[@]}" --fail --output /dev/null --upload-file "$dir/body" "$url/$1"; }
printf x > "$dir/body"
put tank/b/a
before=$(list 'list-type=2&prefix=tank%2F' tank/)
put tank
got=$(curl "${signed[@]}" --fail "$url/tank/b/a")
place=$(list 'list-type=2&prefix=tank%2F' tank/ || true)
all=$(list 'list-type=2&prefix=')
dirs=$(list 'delimiter=%2F&list-type=2&prefix=')
below=$(list 'list-type=2&prefix=tank%2Fb%2F' tank/b/ || true)
curl "${signed[@]}" --fail --request DELETE "$url/tank"
after=$(list 'list-type=2&prefix=tank%2F' tank/)
echo "tank/ before: $before; with an object tank: '$place', of everything: $all, with a delimiter: $dirs, of tank/b/: '$below'; without it again: $after"
if [ "$before,$got,$place,$all,$dirs,$below,$after" = "tank/b/a ,x,,tank ,tank ,tank/b/a ,tank/b/a " ]; then
    echo "as before: hidden in the listing of its directory, shown in that of the directory below it"
else
    echo "CHANGED" >&2
    exit 1
fi

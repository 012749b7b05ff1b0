#!/usr/bin/env bash
# On radosgw 16.2.15, switching on versioning for a bucket ends If-None-Match: a PUT that must not replace an object answers 200 and replaces it.
#
# Guess before it was run: radosgw honours "If-None-Match: *" on PUT (a second one is answered 412), and versioning changes what becomes of the old
# content, not whether a condition holds.
# Seen with radosgw, ceph-mon and ceph-osd 16.2.15+ds-0+deb12u2 (Debian 12), one OSD in memory, on loopback: in a new bucket a second
# conditional PUT of a key is answered 412. Once versioning is enabled, conditional PUTs of that key are answered 200, and those of a key that
# is new then: 200, 200; GET gives the last body. Whether the rule is kept is a property of the bucket's present state, then, and not of the server: a
# program that tested it once, when it began to use the bucket, is told nothing when an administrator changes that.
#
# Needs root on Debian 12 (apt-get, dpkg-deb) and curl 7.76 or newer; installs nothing, unpacks 300 MB in a temporary directory.
# Uses no other network than loopback.
set -euo pipefail
dir=$(mktemp -d)
port=$((RANDOM % 5000 + 12000))
"$(dirname "$0")/../xtask/servers/radosgw.sh" "$dir" "$port" user password > "$dir/out" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null || tail -n 5 "$dir/out"; wait; rm -rf "$dir"' EXIT
url=http://127.0.0.1:$port/bucket
signed=(--silent --max-time 20 --aws-sigv4 aws:amz:us-east-1:s3 --user user:password -H "x-amz-content-sha256: UNSIGNED-PAYLOAD")
for _ in $(seq 300); do
    kill -0 "$server"
    curl "${signed[@]}" --fail --output /dev/null --request PUT "$url" && break
    sleep 1
done
# Answers to two conditional PUTs of one key.
put_twice() {
    for body in first second; do
        curl "${signed[@]}" --output /dev/null --write-out '%{http_code} ' -H 'If-None-Match: *' --data-binary "$body" --request PUT "$url/$1"
    done
}
enabled='<VersioningConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Status>Enabled</Status></VersioningConfiguration>'
before=$(put_twice old)
curl "${signed[@]}" --fail --request PUT --data-binary "$enabled" "$url?versioning="
old=$(put_twice old)
new=$(put_twice new)
got=$(curl "${signed[@]}" --fail "$url/new")
echo "without versioning: $before; with versioning, the same key: $old, a new key: $new, of which GET gives: $got"
if [ "$before/$old/$new/$got" = "200 412 /200 200 /200 200 /second" ]; then
    echo "as before: with versioning, the condition is not looked at"
else
    echo "CHANGED" >&2
    exit 1
fi

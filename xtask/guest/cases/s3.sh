# The life of a pool in a bucket of a real S3 server: real files, a stream, a scrub, a crash of the daemon, down, and up on another host from the bucket alone.
#: disk=4G minio
disk=/dev/disk/vm/disk
mkfs.ext4 -q $disk; mkdir -p /disk; mount $disk /disk
. /job/lib.sh
export STATE_DIRECTORY=/disk/state CACHE_DIRECTORY=/disk/cache
modprobe zfs
ms() { echo $((($(date +%s%N) - $1) / 1000000)); }

# The server, with a bucket; `export`ed as docs/zfs.md says.
mkdir -p /disk/minio/bucket
export AWS_ENDPOINT_URL=http://127.0.0.1:9000 AWS_ALLOW_HTTP=true AWS_REGION=us-east-1 AWS_ACCESS_KEY_ID=cistern AWS_SECRET_ACCESS_KEY=cistern-secret
MINIO_ROOT_USER=$AWS_ACCESS_KEY_ID MINIO_ROOT_PASSWORD=$AWS_SECRET_ACCESS_KEY MINIO_BROWSER=off MINIO_UPDATE=off MINIO_CI_CD=1 \
  /job/minio server --quiet --address 127.0.0.1:9000 /disk/minio > /tmp/minio.log 2>&1 &
ready() { (exec 3<> /dev/tcp/127.0.0.1/9000; printf 'GET /minio/health/ready HTTP/1.0\r\n\r\n' >&3; head -n 1 <&3 | grep -q ' 200 ') 2> /dev/null; }
until ready; do kill -0 $! || fail "$(cat /tmp/minio.log)"; sleep 0.5; done
export SSL_CERT_FILE=/job/certificates # nothing here speaks TLS, and yet it has to be there
URL=s3://bucket/tank
"$cistern" probe $URL > /tmp/said || fail "$(cat /tmp/said)"
( export AWS_SECRET_ACCESS_KEY=wrong; refused 7 "credentials" "$cistern" up tank --on $URL --size 1G )

"$cistern" up tank --on $URL --size 1G -- --journal-size 256M
cp -a /usr/bin /usr/sbin /tank/
head -c 20M /dev/urandom > /tank/random
(cd /tank && find . -type f -print0 | sort -z | xargs -0 sha256sum) > /tmp/sums
zfs snapshot tank@a
# The daemon is killed under the stream, and comes back by itself.
( zfs send tank@a | zfs receive tank/copy ) & copying=$!
sleep 2; kill -9 "$("$cistern" status --json | grep -o '"pid": *[0-9]*' | head -1 | tr -dc 0-9)"
wait $copying || fail "the stream ends with $?"
zpool scrub -w tank
zpool status -v tank | grep -q 'No known data errors' || fail "$(zpool status -v tank)"
begin=$(date +%s%N)
"$cistern" down tank > /tmp/said
grep -q "safe to disconnect" /tmp/said || fail "down says: $(cat /tmp/said)"
echo "down, with what was not uploaded: $(ms "$begin") ms; files: $(wc -l < /tmp/sums), in the bucket: $(du -sm /disk/minio/bucket | cut -f1) MB in $(find /disk/minio/bucket -name xl.meta | wc -l) objects"
no_errors

rm -r /disk/state /disk/cache
export STATE_DIRECTORY=/disk/state-2 CACHE_DIRECTORY=/disk/cache-2
begin=$(date +%s%N)
"$cistern" up tank --on $URL -- --journal-size 256M
echo "up on another host: $(ms "$begin") ms"
(cd /tank && sha256sum -c --quiet /tmp/sums)
(cd /tank/copy && sha256sum -c --quiet /tmp/sums)
zpool scrub -w tank
zpool status -v tank | grep -q 'No known data errors' || fail "$(zpool status -v tank)"
"$cistern" down tank | grep -q "safe to disconnect"
no_errors

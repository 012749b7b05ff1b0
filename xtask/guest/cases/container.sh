# The image of docs/install.md, in Docker's own daemon, by the commands of the page: what a client flushed is there when its container is stopped, killed,
# and gone; and a container that is stopped has uploaded everything.
#: init=systemd disk=5G minio image
set -eu
export PATH=/usr/sbin:/usr/bin
disk=/dev/disk/vm/disk
mkfs.ext4 -q $disk; mkdir -p /disk; mount $disk /disk
fail() { echo "FAILED: $*"; docker ps -a; docker logs tank; tail -n 20 /tmp/dockerd; exit 1; }
trap 'fail "line $LINENO"' ERR
eventually() { local i; for i in $(seq 300); do "$@" > /dev/null 2>&1 && return; sleep 0.1; done; fail "never: $*"; }
modprobe nbd; modprobe overlay

mkdir -p /disk/minio/bucket
export AWS_ACCESS_KEY_ID=cistern AWS_SECRET_ACCESS_KEY=cistern-secret
MINIO_ROOT_USER=$AWS_ACCESS_KEY_ID MINIO_ROOT_PASSWORD=$AWS_SECRET_ACCESS_KEY MINIO_BROWSER=off MINIO_UPDATE=off MINIO_CI_CD=1 \
  /job/minio server --quiet --address 127.0.0.1:9000 /disk/minio > /tmp/minio.log 2>&1 &
ready() { (exec 3<> /dev/tcp/127.0.0.1/9000; printf 'GET /minio/health/ready HTTP/1.0\r\n\r\n' >&3; head -n 1 <&3 | grep -q ' 200 ') 2> /dev/null; }
eventually ready
dockerd --data-root /disk/docker --iptables=false --ip6tables=false --bridge=none > /tmp/dockerd 2>&1 &
eventually docker info

# The page, with the store of this host in place of Amazon's, and its network in place of one of Docker's, which would need iptables.
awk '/^## / { inside = $0 == "## Containers" } /^```/ { block = inside && !block; next } block' /job/install.md \
  | sed 's|-p 127.0.0.1:10809:10809|--network host -e AWS_ENDPOINT_URL=http://127.0.0.1:9000 -e AWS_ALLOW_HTTP=true -e AWS_REGION=us-east-1|' > /tmp/page
grep -q -- '--network host' /tmp/page && grep -q 'docker load' /tmp/page || fail "the page has other commands than this case knows: $(cat /tmp/page)"
cd /job
. /tmp/page
attached() { nbd-client 127.0.0.1 10809 /dev/nbd0 -N tank -b 4096; }
eventually attached
head -c 20M /dev/urandom > /tmp/data
holds() { blockdev --flushbufs /dev/nbd0; head -c 20M /dev/nbd0 | cmp - /tmp/data || fail "$1"; }
dd if=/tmp/data of=/dev/nbd0 bs=1M conv=fsync 2> /dev/null
holds "another content"
nbd-client -d /dev/nbd0 > /dev/null

# Killed, it goes on with its journal.
docker kill tank > /dev/null
docker start tank > /dev/null
eventually attached; holds "another content behind a kill"; nbd-client -d /dev/nbd0 > /dev/null

# Stopped, it has uploaded everything: the bucket alone has it.
begin=$(date +%s%N)
docker stop tank > /dev/null
echo "docker stop: $((($(date +%s%N) - begin) / 1000000)) ms"
[ "$(docker inspect --format '{{.State.ExitCode}}' tank)" = 0 ] || fail "it did not stop in order"
docker rm tank > /dev/null; docker volume rm cistern cistern-cache > /dev/null
. <(tail -n +2 /tmp/page)
eventually attached; holds "another content from the bucket"; nbd-client -d /dev/nbd0 > /dev/null
docker run --rm cistern:0.1.0 --version
docker stop tank > /dev/null
echo "the image has $(docker image inspect --format '{{.Size}}' cistern:0.1.0) bytes"

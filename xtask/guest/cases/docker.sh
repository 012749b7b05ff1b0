# Docker's own daemon with volumes of `cistern docker`: the commands of docs/start/docker.md as they are written there, with a directory for
# the bucket; shared volumes, killed daemons, restarts of everything, removal.
#: init=systemd disk=5G
set -eu
export PATH=/usr/sbin:/usr/bin
disk=/dev/disk/vm/disk
mkfs.ext4 -q $disk; mkdir -p /disk; mount $disk /disk
mkdir -p /disk/state /disk/cache /disk/store /var/lib/cistern /var/cache/cistern /etc/cistern
mount --bind /disk/state /var/lib/cistern
mount --bind /disk/cache /var/cache/cistern
install -m 755 /job/cistern /usr/bin/cistern
cp /job/*.service /etc/systemd/system/
fail() { echo "FAILED: $*"; cat /var/lib/cistern/docker/volumes.json; docker ps -a; tail -n 20 /tmp/dockerd 2> /dev/null; journalctl -q --no-pager -n 40; dmesg | tail -n 20; exit 1; }
trap 'fail "line $LINENO"' ERR
no_errors() { ! dmesg | grep -iE 'I/O error|buffer i/o|returned error' || fail "the kernel saw errors"; }
refused() { # TEXT COMMAND...
  local text=$1; shift
  ! "$@" > /tmp/said 2>&1 || fail "$* succeeds"
  grep -q -- "$text" /tmp/said || fail "$*: no '$text' in: $(cat /tmp/said)"
}
eventually() { local i; for i in $(seq 300); do "$@" > /dev/null 2>&1 && return; sleep 0.1; done; fail "never: $*"; }
modprobe nbd; modprobe overlay
printf 'journal-size = "256M"\ncache-size = "64M"\n' > /etc/cistern/cistern.toml
echo CISTERN_VOLUMES=/disk/store > /etc/cistern/docker.env
systemctl daemon-reload

engine=
docker_starts() { # DIR OPTIONS
  dockerd --data-root "$@" --iptables=false --ip6tables=false --bridge=none > /tmp/dockerd 2>&1 & engine=$!
  eventually docker info
}
image() {
  local root=/tmp/image
  mkdir -p $root/bin $root/lib64 $root/lib/x86_64-linux-gnu
  cp /usr/bin/busybox $root/bin/; cp -L /lib64/ld-linux-x86-64.so.2 $root/lib64/
  cp -L /lib/x86_64-linux-gnu/lib{c,resolv,m}.so.* $root/lib/x86_64-linux-gnu/
  for name in sh cat date sync sleep sha256sum head ls; do ln -sf busybox $root/bin/$name; done
  tar -C $root -c . | docker import - busybox > /dev/null
}
docker_starts /disk/docker
image

# The page.
awk '/^```sh$/ { inside = 1; next } /^```$/ { if (inside) print "# end of a block"; inside = 0; next } inside' /job/docker.md \
  | sed 's/--opt size=20G/--opt size=1G/' > /tmp/commands
sed -n '1,/^# end of a block$/p' /tmp/commands > /tmp/first
sed '1,/^# end of a block$/d' /tmp/commands > /tmp/second
grep -q 'volume inspect' /tmp/first && grep -q 'cat /data/since' /tmp/second || fail "the page has other commands than this case knows"
begin=$(date +%s%N)
. /tmp/first > /tmp/said
grep -q '/disk/store/db' /tmp/said || fail "inspect says: $(cat /tmp/said)"
echo "the page, to a volume that was written: $((($(date +%s%N) - begin) / 1000000)) ms"

# Behind the last container it is unmounted at once, uploaded soon, and free for another host.
! grep -q docker/mounts /proc/mounts || fail "still mounted: $(cat /proc/mounts)"
free() {
  cistern info "$1" --json | grep -q '"released": *true' && [ -z "$(cistern status --json | grep -o '"pid"')" ] \
    && ! grep -q '"is_here": true' /var/lib/cistern/docker/volumes.json
}
eventually free /disk/store/db

# What it refuses.
docker volume create --driver cistern --opt size=1G db > /dev/null
refused 'there is no option colour' docker volume create --driver cistern --opt colour=red red
refused 'cannot be the name' docker volume create --driver cistern "$(printf 'n%.0s' $(seq 60))"
[ "$(docker volume ls -q)" = db ] || fail "volumes: $(docker volume ls)"

# Two containers, one volume; its daemon is killed under them, and `cistern docker` replaced.
docker run -d --name one --volume db:/data busybox sh -c 'n=0; while :; do n=$((n+1)); echo $n > /data/n; sync; sleep 0.1; done' > /dev/null
docker run --rm --volume db:/data busybox sh -c 'head -c 5000000 /dev/urandom > /data/file; sha256sum /data/file; ls /data' > /tmp/sum
! grep -q lost+found /tmp/sum || fail "a container sees lost+found"
refused 'in use' cistern serve /disk/store/db --state-dir /disk/elsewhere --cache-dir /disk/cache-elsewhere --listen unix:/tmp/nbd
refused 'in use' docker volume rm db
kill -9 "$(cistern status --json | grep -o '"pid": *[0-9]*' | head -1 | tr -dc 0-9)"
docker run --rm --volume db:/data busybox sha256sum /data/file | cmp - <(head -1 /tmp/sum) || fail "another file"
systemctl restart cistern-docker
docker run --rm --volume db:/data busybox cat /data/n > /tmp/n
grep -q docker/mounts /proc/mounts || fail "unmounted under a container"
docker exec one sh -c 'echo here > /data/here'
docker stop -t 1 one > /dev/null; docker rm one > /dev/null
! grep -q docker/mounts /proc/mounts || fail "still mounted: $(cat /proc/mounts)"
eventually free /disk/store/db
no_errors

# Docker's daemon dies with a container, and comes back.
docker run -d --name two --volume db:/data busybox sleep 1000 > /dev/null
kill -9 $engine; wait $engine || true
docker_starts /disk/docker
docker rm -f two > /dev/null
docker run --rm --volume db:/data busybox cat /data/here > /dev/null
eventually free /disk/store/db

# One that lives on keeps what it has.
kill $engine; wait $engine || true
docker_starts /disk/docker --live-restore
docker run -d --name three --volume db:/data busybox sh -c 'while :; do date > /data/alive; sync; sleep 0.1; done' > /dev/null
kill -9 $engine; wait $engine || true
docker_starts /disk/docker --live-restore
docker run --rm --volume db:/data busybox cat /data/alive > /dev/null
[ "$(docker inspect -f '{{.State.Running}}' three)" = true ] || fail "it did not live on"
docker exec three sh -c 'cat /data/alive > /data/still; sync'
grep -q docker/mounts /proc/mounts || fail "unmounted under a container"
docker rm -f three > /dev/null
eventually free /disk/store/db
docker run --rm --volume db:/data busybox cat /data/still > /dev/null
eventually free /disk/store/db
no_errors

# Another host.
kill $engine; wait $engine || true
systemctl stop cistern-docker
umount /var/lib/cistern; mkdir /disk/state-2; mount --bind /disk/state-2 /var/lib/cistern
systemctl start cistern-docker
docker_starts /disk/docker-2
image
. /tmp/second > /tmp/said
grep -q ':..:' /tmp/said || fail "another host reads: $(cat /tmp/said)"
# It was there before: it is forgotten, and stays.
docker volume rm db > /dev/null
cistern info /disk/store/db > /dev/null || fail "somebody else's volume was removed"

# What was made here goes into the trash, and comes back.
docker volume create --driver cistern --opt size=512M --opt fs=xfs mine > /dev/null
docker run --rm --volume mine:/data busybox sh -c 'echo kept > /data/kept; sync'
docker volume rm mine > /dev/null
refused '' cistern info /disk/store/mine
cistern ls --trash /disk/store | grep -q mine || fail "not in the trash"
refused 'trash' docker volume create --driver cistern --opt size=512M --opt fs=xfs mine
cistern restore /disk/store/mine > /dev/null
docker volume create --driver cistern --opt size=512M --opt fs=xfs mine > /dev/null
[ "$(docker run --rm --volume mine:/data busybox cat /data/kept)" = kept ] || fail "not kept"
eventually free /disk/store/mine
kill $engine; wait $engine || true
no_errors

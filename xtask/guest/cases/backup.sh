# What changed, sent by ZFS and by cistern, side by side: bytes and seconds. The pool that comes of cistern's stream is the one that was sent.
. /job/lib.sh
modprobe zfs
ms() { echo $((($(date +%s%N) - $1) / 1000000)); }
bytes() { stat -c %s "$1"; }
mkdir -p /tmp/out; mount -t tmpfs -o size=1500M none /tmp/out

serve
"$cistern" attach tank
zpool create -f -o ashift=12 -o cachefile=none -O compression=off -O atime=off -O recordsize=16k pool /dev/cistern/tank
# A database's file, incompressible, and a tree of small ones.
head -c 192M /dev/urandom > /pool/data
cp -a /usr/bin /pool/bin
snapshot() { zfs snapshot "pool@$1"; zpool sync pool; "$cistern" snapshot "/srv/tank@$1" --wait; }
snapshot a

measure() { # WHAT [from a]
  local begin theirs ours
  begin=$(date +%s%N)
  zfs send ${2:+-i @$2} "pool@$1" > /tmp/out/zfs; theirs=$(ms "$begin")
  begin=$(date +%s%N)
  "$cistern" send "/srv/tank@$1" ${2:+--from $2} --to /tmp/out/cistern; ours=$(ms "$begin")
  echo "$1${2:+ since $2}: zfs $(bytes /tmp/out/zfs) bytes in $theirs ms, cistern $(bytes /tmp/out/cistern) bytes in $ours ms"
}
measure a; rm /tmp/out/zfs; mv /tmp/out/cistern /tmp/out/a

# A thousandth of the file at random, some small files, and some that go.
for n in $(seq 200); do
  dd if=/dev/urandom of=/pool/data bs=4k count=1 seek=$(((RANDOM * 32768 + RANDOM) % 49152)) conv=notrunc status=none
done
cp -a /usr/sbin /pool/sbin
rm -r /pool/bin/z*
snapshot b
(cd /pool && find . -type f -print0 | sort -z | xargs -0 sha256sum) > /tmp/sums
measure b a; rm /tmp/out/zfs; mv /tmp/out/cistern /tmp/out/b
zpool scrub -w pool
zpool export pool
"$cistern" detach tank
stop
no_errors

# On another host.
export STATE_DIRECTORY=/tmp/state-2 CACHE_DIRECTORY=/tmp/cache-2
"$cistern" receive /tmp/out/copy /tmp/out/a
"$cistern" receive /tmp/out/copy /tmp/out/b
rm /tmp/out/a /tmp/out/b
umount -l /srv; mount -t tmpfs -o size=1500M none /srv; mv /tmp/out/copy /srv/tank
serve
"$cistern" attach tank
zpool import -d /dev/cistern -o cachefile=none pool
(cd /pool && sha256sum -c --quiet /tmp/sums)
zfs list -t snapshot -H -o name | grep -q pool@b || fail "the pool has no snapshot b"
zpool scrub -w pool
zpool status -v pool | grep -q 'No known data errors' || fail "$(zpool status -v pool)"
zpool export pool
"$cistern" detach tank
stop
no_errors

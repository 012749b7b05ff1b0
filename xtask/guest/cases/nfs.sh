# A thousand small files over NFS, and a stream into `zfs receive`: on cistern, on nbdkit's memory, and on the guest's own disk. Two turns.
#: disk=2G
. /job/lib.sh
modprobe zfs; modprobe nbd; modprobe nfs
umount /srv; mount -t tmpfs -o size=1800M none /srv
mkdir -p /tmp/tree /mnt/nfs
for i in $(seq 1000); do head -c $((RANDOM % 8192)) /dev/urandom > /tmp/tree/$i; done
tar -C /tmp/tree -cf /tmp/tree.tar .
nfs_server
ms() { echo $((($(date +%s%N) - $1) / 1000000)); }
# The stream: records of 128 KiB.
truncate -s 600M /srv/stream-pool; zpool create -o ashift=12 -o cachefile=none -O compression=off from /srv/stream-pool
head -c 200M /dev/urandom > /from/file; zfs snapshot from@a; zfs send from@a > /srv/stream; zpool destroy from; rm /srv/stream-pool
try() { # WHAT DEVICE
  local begin
  zpool create -f -o ashift=12 -o cachefile=none -O compression=off -O atime=off pool "$2"
  exportfs -o rw,no_root_squash,fsid=1,sync 127.0.0.1:/pool
  mount -t nfs -o vers=4.2 127.0.0.1:/pool /mnt/nfs
  touch /mnt/nfs/first; rm /mnt/nfs/first
  begin=$(date +%s%N); tar -C /mnt/nfs -xf /tmp/tree.tar; sync -f /mnt/nfs; echo "tar over NFS, $1: $(ms "$begin") ms"
  diff -r /tmp/tree /mnt/nfs || fail "NFS shows something else"
  umount /mnt/nfs; exportfs -u 127.0.0.1:/pool
  begin=$(date +%s%N); zfs receive pool/got < /srv/stream; zpool sync pool; echo "receive of $(stat -c %s /srv/stream) bytes, $1: $(ms "$begin") ms"
  zpool destroy pool
}
for turn in 1 2; do
  rm -rf /srv/tank "$STATE_DIRECTORY" "$CACHE_DIRECTORY"
  serve; "$cistern" attach tank
  try cistern /dev/cistern/tank
  "$cistern" detach tank; stop
  rm -rf /srv/tank "$STATE_DIRECTORY" "$CACHE_DIRECTORY"
  rm -f /tmp/nbdkit.pid /tmp/nbdkit.sock; nbdkit -P /tmp/nbdkit.pid -U /tmp/nbdkit.sock memory 1G; nbd-client -b 4096 -unix /tmp/nbdkit.sock /dev/nbd9 > /dev/null
  try nbdkit-memory /dev/nbd9
  nbd-client -d /dev/nbd9 > /dev/null; kill "$(cat /tmp/nbdkit.pid)"
  try "the guest's disk" "$(readlink -f /dev/disk/vm/disk)"
done
rpc.nfsd 0
no_errors

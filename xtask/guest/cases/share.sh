# Shared over NFS by `up`, and no more by `down`, also under clients that have files open: a pool by its own property, xfs by a line for the server.
. /job/lib.sh

modprobe zfs; modprobe nfs; mkdir -p /mnt/nfs
up() { "$cistern" up "$@"; }
down() { "$cistern" down "$1" > /tmp/said; grep -q "safe to disconnect" /tmp/said || fail "down says: $(cat /tmp/said)"; }
shared() { exportfs -s | cut -d'(' -f1 | tr -s ' ' | sort | tr '\n' ';'; }
nfs() { mount -t nfs -o vers=4.2 "127.0.0.1:$1" /mnt/nfs; }
# Somebody who has a file open over NFS, until he is told to write to it again.
cat > /tmp/client <<'CLIENT'
mount -t nfs -o vers=4.2,soft,timeo=20,retrans=1 "127.0.0.1:$1" /mnt/nfs
umount "$1" # of his own alone
exec 7> /mnt/nfs/open; echo first >&7; sync -f /mnt/nfs
touch /tmp/opened
until [ -e /tmp/go ]; do sleep 0.1; done
{ ls /mnt/nfs; } 2> /tmp/client-saw
exec 7>&-; umount -f /mnt/nfs
CLIENT
client() {
  rm -f /tmp/opened /tmp/go
  busybox unshare -m --propagation private bash /tmp/client "$1" & client=$!
  until [ -e /tmp/opened ]; do sleep 0.1; done
}
client_ends() { touch /tmp/go; wait "$client" || true; grep -q "Stale file handle" /tmp/client-saw || fail "the client saw: $(cat /tmp/client-saw)"; }

refused 4 "the NFS server of this host does not run" up tank --on /srv/tank --size 1G --share 127.0.0.0/8
[ ! -e /srv/tank ] || fail "something was made"
"$cistern" doctor | grep -q "note *NFS server *it does not run" || fail "$("$cistern" doctor)"
nfs_server
"$cistern" doctor | grep -q "ok *NFS server" || fail "$("$cistern" doctor)"

up tank --on /srv/tank --size 1G --share 127.0.0.0/8,10.0.0.5=ro,2001:db8::/64 -- --journal-size 256M > /tmp/said
grep -q "shared:  over NFS with 10.0.0.5, 127.0.0.0/8, 2001:db8::/64" /tmp/said || fail "up says: $(cat /tmp/said)"
[ "$(zfs get -Hp -o value sharenfs tank)" = "rw=@127.0.0.0/8:[2001:db8::]/64,ro=10.0.0.5" ]
exportfs -s | grep -q "127.0.0.0/8(.*rw,.*root_squash" || fail "$(exportfs -s)"
! exportfs -s | grep -q no_root_squash
chmod 777 /tank
nfs /tank
head -c 5M /dev/urandom > /mnt/nfs/file; sync /mnt/nfs/file; sha256sum < /mnt/nfs/file > /tmp/sum
umount /mnt/nfs
up tank 2>&1 | grep -q "share tank" && fail "it is shared already"
# What the server has forgotten is shared again; a filesystem below is shared like the one above it.
exportfs -ua; zfs create "tank/a b"; exportfs -ua
up tank > /dev/null
case $(shared) in *"/tank 127.0.0.0/8;/tank 2001:db8::/64;/tank/a\\040b 10.0.0.5;"*) ;; *) fail "shared is $(shared)" ;; esac
zfs destroy "tank/a b"

# Somebody has a file open.
for turn in 1 2; do
  client /tank
  begin=$(date +%s%N)
  down tank
  echo "down under a client: $((($(date +%s%N) - begin) / 1000000)) ms"
  [ -z "$(shared)" ] || fail "still shared: $(shared)"
  client_ends
  up tank > /dev/null
  [ "$(cat /tank/open)" = first ]
done
nfs /tank; sha256sum < /mnt/nfs/file | cmp - /tmp/sum; umount /mnt/nfs

# Another list; killed in each step; nobody any more, and as the pool says on another host.
up tank --share 10.0.0.0/24 > /dev/null
[ "$(shared)" = "/tank 10.0.0.0/24;" ] || fail "shared is $(shared)"
for nth in 4 5; do
  down tank; killed_in $nth up tank; up tank > /dev/null
  [ "$(shared)" = "/tank 10.0.0.0/24;" ] || fail "killed in step $nth of up, shared is $(shared)"
done
for nth in 1 2; do
  killed_in $nth down tank; down tank
  [ -z "$(shared)" ] || fail "killed in step $nth of down, shared is $(shared)"
  up tank > /dev/null
done
down tank
( export STATE_DIRECTORY=/tmp/state-2 CACHE_DIRECTORY=/tmp/cache-2
  up tank --on /srv/tank > /dev/null
  [ "$(shared)" = "/tank 10.0.0.0/24;" ] || fail "on another host shared is $(shared)"
  down tank
  rpc.nfsd 0
  up tank > /tmp/said
  grep -q "shared:  with nobody" /tmp/said || fail "up says: $(cat /tmp/said)"
  down tank
  rpc.nfsd -N 3 -V 4.2 4 )
up tank --no-share > /dev/null
[ -z "$(shared)" ] && [ "$(zfs get -Hp -o value sharenfs tank)" = off ] || fail "shared is $(shared)"
down tank; up tank > /dev/null
[ -z "$(shared)" ] || fail "shared is $(shared)"
down tank
no_errors

# Another filesystem.
rm -r /tmp/state-2
up home --on /srv/home --size 1G --fs xfs --mount "/mnt/a home" --share 127.0.0.0/8,10.0.0.5=ro -- --journal-size 64M > /dev/null
[ "$(shared)" = "/mnt/a\\040home 10.0.0.5;/mnt/a\\040home 127.0.0.0/8;" ] || fail "shared is $(shared)"
chmod 777 "/mnt/a home"
exportfs -r # as when the server is started again
nfs "/mnt/a home"; cp /tmp/sum /mnt/nfs/file; umount /mnt/nfs
exportfs -ua
up home > /dev/null
client "/mnt/a home"
down home
[ -z "$(shared)" ] && [ -z "$(ls /etc/exports.d/cistern-* 2> /dev/null)" ] || fail "still shared: $(shared)"
client_ends
up home --share 127.0.0.0/8 > /dev/null
[ "$(shared)" = "/mnt/a\\040home 127.0.0.0/8;" ] || fail "shared is $(shared)"
nfs "/mnt/a home"; cmp /mnt/nfs/file /tmp/sum; umount /mnt/nfs
rpc.nfsd 0; down home
[ -z "$(ls /etc/exports.d/cistern-* 2> /dev/null)" ] || fail "it would be shared again by a server that starts"
rpc.nfsd -N 3 -V 4.2 4; up home > /dev/null
[ "$(shared)" = "/mnt/a\\040home 127.0.0.0/8;" ] || fail "shared is $(shared)"
up home --no-share > /dev/null
[ -z "$(shared)" ] || fail "shared is $(shared)"
down home
no_errors

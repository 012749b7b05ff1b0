# A power cut under writers over NFS: every file that was closed before it, and noted elsewhere behind that, is there and is what was written.
#: disk=3G boots=2
boot=$(cat /job/boot)
disk=/dev/disk/vm/disk
[ "$boot" != 1 ] || mkfs.ext4 -q $disk
mkdir -p /disk; mount $disk /disk
. /job/lib.sh
export STATE_DIRECTORY=/disk/state CACHE_DIRECTORY=/disk/cache
mkdir -p /disk/store /mnt/nfs
modprobe zfs; modprobe nfs
nfs_server

case $boot in
1)
  "$cistern" up tank --on /disk/store/tank --size 1G --share 127.0.0.0/8 -- --journal-size 256M
  chmod 777 /tank
  mount -t nfs -o vers=4.2 127.0.0.1:/tank /mnt/nfs
  ( while :; do head -c 1M /dev/urandom > /tank/junk.$((RANDOM % 20)); done ) &
  writer() { # of files over NFS; a close that fails ends it
    local n=0 sum
    while :; do
      n=$((n + 1))
      head -c $((RANDOM * 4)) /dev/urandom > "/tmp/file.$1"
      sum=$(sha256sum < "/tmp/file.$1")
      cp "/tmp/file.$1" "/mnt/nfs/$1.$n"
      echo "${sum%% *}  $1.$n" >> "/disk/noted.$1"; sync "/disk/noted.$1"
    done
  }
  for w in 1 2 3; do writer $w & done
  until [ "$(cat /disk/noted.* 2> /dev/null | wc -l)" -gt 300 ]; do sleep 0.2; done
  trap - ERR; vm-report 0; sleep 0.2; echo b > /proc/sysrq-trigger; sleep 60 ;; # reported first: nothing comes after it
2)
  "$cistern" up tank
  mount -t nfs -o vers=4.2 127.0.0.1:/tank /mnt/nfs
  cat /disk/noted.* > /tmp/noted
  echo "closed and noted: $(wc -l < /tmp/noted) files, there: $(ls /tank | grep -vc junk)"
  (cd /mnt/nfs && sha256sum -c --quiet /tmp/noted) || fail "a file that was closed is not what was written"
  umount /mnt/nfs
  (cd /tank && sha256sum -c --quiet /tmp/noted)
  zpool scrub -w tank
  zpool status -v tank | grep -q 'No known data errors' || fail "$(zpool status -v tank)"
  "$cistern" down tank | grep -q "safe to disconnect"
  no_errors ;;
esac

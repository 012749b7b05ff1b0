# What the cases share. Runs inside the guest, as root, from /job.
set -eu
export STATE_DIRECTORY=/tmp/state RUNTIME_DIRECTORY=/tmp/run CACHE_DIRECTORY=/tmp/cache
mkdir -p /tmp/run
cistern=/job/cistern
daemon=
mount -t tmpfs -o size=1500M none /srv # the store
cd /tmp

fail() { echo "FAILED: $*"; tail -n 20 /tmp/serve.log "$STATE_DIRECTORY/attached/keeper.log" 2>/dev/null || true; dmesg | tail -n 20; exit 1; }
trap 'fail "line $LINENO"' ERR

tank="/srv/tank --create 1G --journal-size 256M"

# Starts the daemon and waits until it serves.
serve() { # [URL OPTION...], otherwise $tank: a volume of 1 GiB of that name
  local ready
  [ $# -gt 0 ] || set -- $tank
  mkfifo /tmp/ready
  "$cistern" serve "$@" > /tmp/ready 2>> /tmp/serve.log &
  daemon=$!
  exec 3< /tmp/ready; rm /tmp/ready
  read -r ready <&3 || fail "the daemon does not start"
  case $ready in serving*) ;; *) fail "the daemon says: $ready" ;; esac
}

# Ends it as a service manager does, or as a crash does.
stop() { kill -TERM "$daemon"; wait "$daemon" || fail "a stop ends with $?"; }
crash() { kill -KILL "$daemon"; wait "$daemon" || true; }

# Runs a command that must fail with a code, and say something.
refused() {
  local code=$1 text=$2 said rc=0; shift 2
  said=$("$@" 2>&1) || rc=$?
  [ "$rc" = "$code" ] || fail "$*: $rc instead of $code: $said"
  case $said in *"$text"*) ;; *) fail "$*: no '$text' in: $said" ;; esac
}

# Nothing that the kernel calls an error, but for nbd9: a peer's device, which nbd-client ends under whoever still looks at it.
no_errors() { ! dmesg | grep -v nbd9 | grep -iE 'I/O error|buffer i/o|returned error' || fail "the kernel saw errors"; }

# None of the daemon's threads waits for pages of its own device (PF_MEMALLOC_NOIO).
no_own_pages() {
  local stat flags
  for stat in /proc/$daemon/task/*/stat; do
    flags=$(sed 's/.*) //' "$stat" | cut -d' ' -f7)
    [ $((flags & 0x80000)) != 0 ] || fail "$stat: flags $flags"
  done
}

# The longest request of what fio says in /tmp/fio.json.
longest_request() {
  awk '/"lat_ns"/ { in_lat = 1 } in_lat && /"max"/ { gsub(/[^0-9]/, ""); if ($0 + 0 > most) most = $0 + 0; in_lat = 0 }
    END { printf "%.2f s\n", most / 1e9 }' /tmp/fio.json
}

# How often the keeper gave a device a connection, or saw that it has one when it began.
new_connections() { grep -c "is served as" "$STATE_DIRECTORY/attached/keeper.log"; }

# A pool on the device of tank has no error, in what is on it and in what was counted.
scrubbed() { # POOL
  zpool scrub -w "$1"
  zpool status -v "$1" > /tmp/status
  grep -q 'errors: No known data errors' /tmp/status || { cat /tmp/status; fail "the pool has errors"; }
  awk '$1 == "cistern/tank" && $3 + $4 + $5 > 0 { exit 1 }' /tmp/status || { cat /tmp/status; fail "the pool counted errors"; }
}

# Reads and writes that are verified, while the daemon ends and begins again: nothing fails.
verified_over() { # DEVICE, and each ending: stop or crash
  local device=$1 load ending begin ended served end_ms=0 start_ms=0 code=0; shift
  fio --name=a --filename="$device" --direct=1 --ioengine=libaio --rw=randrw --bs=4k --iodepth=64 --size=256m --time_based \
    --runtime=1h --verify=crc32c --verify_fatal=1 --verify_backlog=1024 --output-format=json > /tmp/fio.json &
  load=$!
  for ending; do
    sleep 5
    begin=$(date +%s%N); "$ending"; ended=$(date +%s%N); serve; served=$(date +%s%N)
    [ $(((ended - begin) / 1000000)) -le $end_ms ] || end_ms=$(((ended - begin) / 1000000))
    [ $(((served - ended) / 1000000)) -le $start_ms ] || start_ms=$(((served - ended) / 1000000))
    kill -0 "$load" || fail "fio ended before the last restart"
  done
  sleep 5
  kill -INT "$load"; wait "$load" || code=$?
  # Interrupted, and nothing failed.
  [ $code = 128 ] && grep -q '"error" : 0,' /tmp/fio.json || fail "fio ends with $code"
  echo "longest request of fio over $# restarts: $(longest_request); the daemon ended within $end_ms ms, and served again within $start_ms ms"
  no_errors
}

# A verb that is killed when it says its nth step.
killed_in() { # NTH VERB...
  local nth=$1 n=0 line pid; shift
  rm -f /tmp/steps; mkfifo /tmp/steps
  "$cistern" "$@" 2> /tmp/steps > /dev/null & pid=$!
  while read -r line; do
    n=$((n + 1))
    if [ $n = "$nth" ]; then kill -KILL $pid; break; fi
  done < /tmp/steps
  wait $pid || true
}

# The kernel's NFS server, with what stands beside it.
nfs_server() {
  modprobe nfsd
  mount -t tmpfs none /var/lib/nfs; mkdir -p /var/lib/nfs/{v4recovery,sm,sm.bak,nfsdcld,rpc_pipefs}; touch /var/lib/nfs/{etab,rmtab,state}
  mount -t nfsd nfsd /proc/fs/nfsd
  echo 10 > /proc/fs/nfsd/nfsv4gracetime # nobody opens anything before
  exportfs -ra
  rpcbind; rpc.nfsd -N 3 -V 4.2 4; rpc.mountd -N 3
}

# Something of the host, in a case that has one (`#: host`; /job/host is read).
ask() { # link MS MB | link wide | link away | peer start | peer stop
  local said
  exec 4<> "/dev/tcp/10.0.2.2/$control_port"; echo "$*" >&4; read -r said <&4; exec 4>&-
  [ "$said" = ok ] || fail "the host: $said"
}

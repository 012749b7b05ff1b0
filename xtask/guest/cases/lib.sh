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

# Starts the daemon and waits until it serves.
serve() {
  local ready
  mkfifo /tmp/ready
  "$cistern" serve /srv/tank --create 1G --journal-size 256M > /tmp/ready 2>> /tmp/serve.log &
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

# Nothing that the kernel calls an error.
no_errors() { ! dmesg | grep -iE 'I/O error|buffer i/o|returned error' || fail "the kernel saw errors"; }

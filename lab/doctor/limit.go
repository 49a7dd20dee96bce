package doctor

import "golang.org/x/sys/unix"

// rlimitProcesses is the limit of a user's threads.
const rlimitProcesses = unix.RLIMIT_NPROC

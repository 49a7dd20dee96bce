package dataplane

import (
	"math"
	"syscall"
)

// maxFileReserve bounds how many of the files that this process may have open are kept for all but clients: the API,
// health checks, listeners, the data.
const maxFileReserve = 256

// fileReserve is the least descriptor that no client's connection may have. The kernel gives the lowest that is free,
// so it is given only when all below it are open, by whomever. At start, Go raises the limit as far as it may.
func fileReserve() uintptr {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxUint
	}
	most := uint64(limit.Cur) //nolint:unconvert // It is signed on FreeBSD.
	return uintptr(most - min(most/4, maxFileReserve))
}

// checkReserve is EMFILE for a socket that is in the reserve. It is a net.Dialer's Control, too.
func (p *Plane) checkReserve(_, _ string, socket syscall.RawConn) error {
	inReserve := false
	if err := socket.Control(func(fd uintptr) { inReserve = fd >= p.fileReserve }); err != nil || !inReserve {
		return err
	}
	p.filesShort.Do(func() {
		p.log.Warn("clients are refused: so many files are open that the rest is kept for the API; raise `ulimit -n`")
	})
	return syscall.EMFILE
}

// isInReserve tells whether a socket has to be closed again, because it is in the reserve.
func (p *Plane) isInReserve(socket syscall.Conn) bool {
	raw, err := socket.SyscallConn()
	return err == nil && p.checkReserve("", "", raw) != nil
}

package store

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
)

const (
	logHeader   = 32
	frameHeader = 24
)

// checkLog refuses a write-ahead log in which acknowledged changes are damaged. A missing
// log is fine.
//
// SQLite reads a log up to the first page that is not as it was written, and takes the
// rest for the remains of a commit that a crash interrupted, and that was never
// acknowledged. If the damage is further up, acknowledged changes are lost silently.
// checkLog therefore looks at what follows the first bad page. The log is synced at the
// end of every commit, so a page that is followed by a page of a later commit was on disk.
// Damage to the last commit, or to the mark that ends the commit before it, looks the same
// as what a crash leaves. The format is
// https://sqlite.org/fileformat2.html#the_write_ahead_log.
func checkLog(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return readLog(bufio.NewReaderSize(f, 1<<20))
}

func readLog(r io.Reader) error {
	head := make([]byte, logHeader)
	if err := readFull(r, head); err != nil {
		return nilAtEOF(err)
	}
	sum := newLogSum(head)
	sum.add(head[:24])
	size := binary.BigEndian.Uint32(head[8:])
	sound := sum.equals(head[24:]) && binary.BigEndian.Uint32(head)>>1 == 0x377f0682>>1 && size >= 512 && size <= 1<<16
	if !sound {
		size = 0 // All that matters then is whether anything follows.
	}
	frame := make([]byte, frameHeader+size)
	broken, lost := false, false // a bad page was found; and after it the end of a commit
	for n := 1; ; n++ {
		if err := readFull(r, frame); err != nil {
			return nilAtEOF(err)
		}
		if !sound {
			return unusableError("its write-ahead log (-wal) has a damaged header")
		}
		ours := string(frame[8:16]) == string(head[16:24]) // otherwise it remains of an earlier log
		sum.add(frame[:8])
		sum.add(frame[frameHeader:])
		broken = broken || !ours || !sum.equals(frame[16:])
		if lost && ours {
			return unusableError(
				"its write-ahead log (-wal) is damaged before page %d of it, and changes that were acknowledged are lost",
				n,
			)
		}
		lost = lost || broken && ours && binary.BigEndian.Uint32(frame[4:]) != 0
	}
}

// readFull reports the end of the input as io.EOF, even in the middle.
func readFull(r io.Reader, into []byte) error {
	_, err := io.ReadFull(r, into)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = io.EOF
	}
	return err
}

func nilAtEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// logSum is the running checksum of a write-ahead log.
type logSum struct {
	order  binary.ByteOrder
	s0, s1 uint32
}

// newLogSum reads from the log's header in which byte order words are summed.
func newLogSum(head []byte) *logSum {
	if head[3]&1 == 1 {
		return &logSum{order: binary.BigEndian}
	}
	return &logSum{order: binary.LittleEndian}
}

func (s *logSum) add(b []byte) {
	for ; len(b) >= 8; b = b[8:] {
		s.s0 += s.order.Uint32(b) + s.s1
		s.s1 += s.order.Uint32(b[4:]) + s.s0
	}
}

// equals compares the checksum with a stored one.
func (s *logSum) equals(b []byte) bool {
	return s.s0 == binary.BigEndian.Uint32(b) && s.s1 == binary.BigEndian.Uint32(b[4:])
}

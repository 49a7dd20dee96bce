// Package lines keeps values in files of JSON lines, which processes append to and others read as
// they grow. Begin with Append, Read and Open.
package lines

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// ErrGone means that a file was removed or replaced.
var ErrGone = errors.New("the file is gone")

// Create makes a file, so that it can be followed from the beginning.
func Create(file string) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// Encode is what a file of these values has.
func Encode[T any](values ...T) (data []byte, err error) {
	for _, v := range values {
		line, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		data = append(append(data, line...), '\n')
	}
	return data, nil
}

// Append adds a value, and returns of how many bytes. A single write of a short line with O_APPEND is not
// torn by another process's.
func Append[T any](file string, v T) (n int, err error) {
	data, err := Encode(v)
	if err != nil {
		return 0, err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	n, err = f.Write(data)
	return n, errors.Join(err, f.Close())
}

// Read returns what a file has; nothing if there is no such file.
func Read[T any](file string) ([]T, error) {
	r, err := Open[T](file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	all, err := r.Next()
	if errors.Is(err, ErrGone) {
		err = nil
	}
	return all, err
}

// Reader reads a file as it grows.
type Reader[T any] struct {
	file *os.File
	buf  *bufio.Reader
	line []byte // begun, and not ended yet
}

// Open begins with the first line. It is for the caller to close.
func Open[T any](file string) (*Reader[T], error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	return &Reader[T]{file: f, buf: bufio.NewReader(f)}, nil
}

// Close ends it.
func (r *Reader[T]) Close() error { return r.file.Close() }

// Next returns what was written since the last call; with the last there will ever be, ErrGone.
func (r *Reader[T]) Next() ([]T, error) {
	// Looked at first, so that what is written before the end is read.
	info, err := r.file.Stat()
	if err != nil {
		return nil, err
	}
	var gone error
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Nlink == 0 {
		gone = ErrGone
	}
	var all []T
	for {
		part, err := r.buf.ReadBytes('\n')
		r.line = append(r.line, part...)
		if errors.Is(err, io.EOF) {
			return all, gone
		}
		if err != nil {
			return all, err
		}
		var v T
		// A line that a crash cut short is skipped.
		if json.Unmarshal(r.line, &v) == nil {
			all = append(all, v)
		}
		r.line = r.line[:0]
	}
}

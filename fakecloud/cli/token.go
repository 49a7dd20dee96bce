package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// token is a bearer token, by name and role, and the file that holds it.
type token struct {
	name, file string
	role       cloud.Role
}

// read returns the token in the file. If the file is missing, it is created with a new
// secret.
func (t token) read() (cloud.GivenToken, error) {
	content, err := os.ReadFile(t.file)
	if errors.Is(err, os.ErrNotExist) {
		content = []byte(cloud.NewSecret() + "\n")
		err = writeSecret(t.file, content)
	}
	if err != nil {
		return cloud.GivenToken{}, fmt.Errorf("token %s: %w", t.name, err)
	}
	return cloud.GivenToken{Name: t.name, Role: t.role, Secret: strings.TrimSpace(string(content))}, nil
}

// writeSecret writes a file that only its owner can read, completely or not at all.
func writeSecret(path string, content []byte) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".token-*") // With mode 0600.
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

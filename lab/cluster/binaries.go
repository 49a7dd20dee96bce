package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Binaries are the programs a lab runs.
type Binaries struct {
	// Dir holds lab, ccm and fakecloud; Kube holds upstream's and hollow-node.
	Dir, Kube string
}

// FindBinaries finds the project's programs in own, or beside the running program if
// own is empty. Upstream's programs are in LAB_KUBE_BIN if that is set, else in kube if
// that is not empty.
func FindBinaries(own, kube string) (Binaries, error) {
	self, err := os.Executable()
	if err != nil {
		return Binaries{}, err
	}
	dir := cmp.Or(own, filepath.Dir(self))
	b := Binaries{Dir: dir, Kube: filepath.Join(dir, "kube")}
	if dir := cmp.Or(os.Getenv("LAB_KUBE_BIN"), kube); dir != "" {
		if b.Kube, err = filepath.Abs(dir); err != nil {
			return b, err
		}
	}
	return b, nil
}

// Missing lists the programs that do not exist or are not executable: own in Dir, kube
// in Kube.
func (b Binaries) Missing(own, kube []string) []string {
	var missing []string
	check := func(dir, name string) {
		file := filepath.Join(dir, name)
		if info, err := os.Stat(file); err != nil || info.Mode()&0o111 == 0 {
			missing = append(missing, file)
		}
	}
	for _, name := range own {
		check(b.Dir, name)
	}
	for _, name := range kube {
		check(b.Kube, name)
	}
	return missing
}

// Need returns an error that names the missing programs.
func (b Binaries) Need(own, kube []string) error {
	missing := b.Missing(own, kube)
	if len(missing) == 0 {
		return nil
	}
	for i, file := range missing {
		if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
			missing[i] += " (there, but it may not be executed: chmod +x)"
		}
	}
	return fmt.Errorf(
		"programs are missing: %s; `make build` builds them, LAB_KUBE_BIN names a folder that has upstream's",
		strings.Join(missing, ", "),
	)
}

// Program is the full path of a program.
func (b Binaries) Program(name string) string {
	if name == "fakecloud" || name == "ccm" || name == "lab" {
		return filepath.Join(b.Dir, name)
	}
	return filepath.Join(b.Kube, name)
}

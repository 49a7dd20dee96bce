package state

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// List names the labs in this user's folder of labs, sorted: those that have a record, readable
// or not. Any other folder there is no lab, since CCMLAB_HOME may also hold other folders.
// Where the folder of labs does not exist, there are no labs.
func List() ([]string, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(root) // Sorted by name.
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && nameRegexp.MatchString(e.Name()) && hasRecord(filepath.Join(root, e.Name())) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// Deleted tells whether a lab's folder was deleted. It was if it does not exist. It was, too, if
// it is in the folder of all labs and has no record: then the lab's processes, which still run,
// have made it anew. A folder elsewhere without a record may be the conformance suite's.
func Deleted(dir string) bool {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return true
	}
	root, err := Root()
	return err == nil && filepath.Dir(dir) == root && !hasRecord(dir)
}

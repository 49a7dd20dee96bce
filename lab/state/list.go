package state

// Which labs there are.

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// List names the labs of this user's folder of labs, in order: those that are
// recorded, readable or not. Any other folder there is somebody else's, since
// CCMLAB_HOME may be one that holds more. No folder of labs is no labs.
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
		if e.IsDir() && nameRE.MatchString(e.Name()) && recorded(filepath.Join(root, e.Name())) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// Deleted tells whether a lab's folder was: it is not there or, in the folder of
// all labs, has no record and is what the lab's processes have made anew. A folder
// elsewhere without a record may be the conformance suite's.
func Deleted(dir string) bool {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return true
	}
	root, err := Root()
	return err == nil && filepath.Dir(dir) == root && !recorded(dir)
}

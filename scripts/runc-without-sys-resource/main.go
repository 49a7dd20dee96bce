// runc-without-sys-resource is runc for machines whose capability bounding set lacks
// CAP_SYS_RESOURCE. There runc cannot give that capability to any process, and every
// `docker run --privileged` and `docker exec --privileged` fails with "unable
// to apply caps". This program removes that one capability from what runc is asked for, and then
// becomes runc. scripts/docker-engine makes it the engine's default runtime.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

const droppedCapability = "CAP_SYS_RESOURCE"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "runc-without-sys-resource:", err)
		os.Exit(1)
	}
}

// run changes the files that args name, and becomes runc. It returns only if that fails.
func run(args []string) error {
	if err := rewriteSpecs(args); err != nil {
		return err
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		return err
	}
	return syscall.Exec(runc, append([]string{"runc"}, args...), os.Environ())
}

// rewriteSpecs removes the capability from the files that args name: the bundle of a create or
// run, the process of an exec.
func rewriteSpecs(args []string) error {
	if bundle := lastOption(args, "--bundle", "-b"); bundle != "" {
		if err := rewriteFile(filepath.Join(bundle, "config.json"), func(spec map[string]any) bool {
			process, _ := spec["process"].(map[string]any)
			return dropCapability(process)
		}); err != nil {
			return err
		}
	}
	if process := lastOption(args, "--process", "-p"); process != "" {
		return rewriteFile(process, dropCapability)
	}
	return nil
}

// lastOption is the value of an option, the last one if it is given several times.
func lastOption(args []string, names ...string) (value string) {
	for i, arg := range args {
		name, given, ok := strings.Cut(arg, "=")
		switch {
		case !slices.Contains(names, name):
		case ok:
			value = given
		case i+1 < len(args):
			value = args[i+1]
		}
	}
	return value
}

// dropCapability removes the capability from all of a process's sets, and tells whether one had
// it.
func dropCapability(process map[string]any) (changed bool) {
	sets, _ := process["capabilities"].(map[string]any)
	for name, set := range sets {
		list, _ := set.([]any)
		kept := slices.DeleteFunc(list, func(c any) bool { return c == droppedCapability })
		if len(kept) < len(list) {
			sets[name], changed = kept, true
		}
	}
	return changed
}

// rewriteFile changes a JSON file. It does not write a file that is not changed. A file that does
// not exist is no error here, since runc reports it.
func rewriteFile(file string, change func(map[string]any) bool) error {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var content map[string]any
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber() // A float64 would round 64-bit limits.
	if err := decoder.Decode(&content); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if !change(content) {
		return nil
	}
	if data, err = json.Marshal(content); err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o600) // An existing file keeps its mode.
}

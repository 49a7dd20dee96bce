// Package state keeps what a lab leaves on disk: one folder per lab, readable by
// its owner alone, gone after `lab down`. The record of a lab is lab.json in it.
//
// It knows nothing of processes and clusters, only what is recorded of them. Begin with Lab and
// Enter.
package state

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/remedy"
)

// Lab is one lab's folder and what is recorded in it.
type Lab struct {
	// Format is the version of the record's format. A record that is newer than this program
	// is not read.
	Format int `json:"format,omitempty"`
	// Name is the lab's, and also the cluster's and the cloud project's.
	Name string `json:"name"`
	// Cluster is the kind of cluster: embedded, kind or external.
	Cluster string `json:"cluster"`
	// CloudProvider is the cluster's, external or none. A record without it is of a cluster
	// with an external provider.
	CloudProvider string `json:"cloudProvider,omitempty"`
	// KubeletProviderIDs, unless empty, is the template of what kubelets get as --provider-id.
	KubeletProviderIDs string `json:"kubeletProviderIDs,omitempty"`
	// Slot X gives the lab 127.X.0.0/16 for all of its addresses. It is 0 for a lab in containers.
	Slot int `json:"slot,omitempty"`
	// Ports by component, on 127.X.0.1.
	Ports map[string]int `json:"ports,omitempty"`
	// Kind is what only a kind cluster has.
	Kind *Kind `json:"kind,omitempty"`
	// External is what only an external cluster has.
	External *External `json:"external,omitempty"`
	// Profile is the cloud's latency profile.
	Profile string `json:"profile"`
	// Nodes is the number of instances that `lab up` makes.
	Nodes int `json:"nodes"`
	// Dialect is the one that `lab up` was told, or "".
	Dialect string `json:"dialect,omitempty"`
	// CloudRegion and CloudZones are what the lab's cloud calls those that it has, unless it is by its own names.
	CloudRegion string   `json:"cloudRegion,omitempty"`
	CloudZones  []string `json:"cloudZones,omitempty"`
	// InstanceQuota is how many instances the lab's cloud allows at first; 0 is the cloud's default.
	InstanceQuota int `json:"instanceQuota,omitempty"`
	// Bin is where our own programs are, if not beside the lab command, e.g. in a
	// bundle that was unpacked.
	Bin string `json:"bin,omitempty"`
	// KubeBin is where upstream's programs are, if LAB_KUBE_BIN has said so at any `lab up`.
	// The lab's own processes, and later commands, use the same.
	KubeBin string `json:"kubeBin,omitempty"`
	// StartedAt is the zero of the timeline.
	StartedAt time.Time `json:"startedAt"`

	dir  string
	lock *os.File
}

// Kind is a kind cluster's part of the record.
type Kind struct {
	// Engine is the container engine's command. Host is the engine's address, if it is not the
	// default.
	Engine string `json:"engine"`
	Host   string `json:"host,omitempty"`
	// Image is the nodes' image, PodNetwork routes or kindnet.
	Image      string `json:"image"`
	PodNetwork string `json:"podNetwork"`
	// Subnet is the range of the lab's network.
	Subnet string `json:"subnet"`
	// ControlPlane is the instance that stands for the control plane's
	// container.
	ControlPlane string `json:"controlPlane,omitempty"`
}

// External is an external cluster's part of the record.
type External struct {
	// Kubeconfig is the file of the user's own that reaches the cluster.
	Kubeconfig string `json:"kubeconfig"`
}

var nameRegexp = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`)

// ErrNone is returned for a lab that is not there.
var ErrNone = errors.New("no such lab")

// Root is the folder of all labs: $CCMLAB_HOME, else ccmlab in the user's
// state folder (XDG base directory specification).
func Root() (string, error) {
	if dir := os.Getenv("CCMLAB_HOME"); dir != "" {
		return filepath.Abs(dir)
	}
	// The specification has relative paths ignored.
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "ccmlab"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("where to keep the lab: set CCMLAB_HOME or HOME: %w", err)
	}
	return filepath.Join(home, ".local", "state", "ccmlab"), nil
}

// Dir is where the lab of this name lives, whether it exists or not.
func Dir(name string) (string, error) {
	if !nameRegexp.MatchString(name) {
		return "", fmt.Errorf(
			"lab name %q: want 1 to 40 lower-case letters, digits or dashes, starting and ending with a letter or digit",
			name,
		)
	}
	root, err := Root()
	return filepath.Join(root, name), err
}

// Open reads the lab of this name; ErrNone if there is none.
func Open(name string) (*Lab, error) {
	dir, err := Dir(name)
	if err != nil {
		return nil, err
	}
	return OpenDir(dir)
}

// Seat is the seat of a classroom that this process was started at; "" elsewhere.
func Seat() string { return os.Getenv("CCMLAB_SEAT") }

// SeatInstances is how many instances a seat of a classroom may have; 0 is any number.
func SeatInstances() int {
	n, _ := strconv.Atoi(os.Getenv(SeatInstancesVariable)) // It is set by the classroom.
	return n
}

// SeatInstancesVariable is the environment variable of SeatInstances.
const SeatInstancesVariable = "CCMLAB_SEAT_INSTANCES"

// creationAdvice says what makes a lab. At a seat of a classroom labs are those of lessons.
func creationAdvice() string {
	if Seat() != "" {
		return "`lab lesson reset` makes those of your lesson again, `lab lesson start ID` those of another"
	}
	return "`lab up` makes one"
}

// OpenDir reads the lab in this folder.
func OpenDir(dir string) (*Lab, error) {
	data, err := os.ReadFile(filepath.Join(dir, "lab.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s (looked in %s); %s", ErrNone, filepath.Base(dir), dir, creationAdvice())
	}
	if other := checkOwner(dir); other != nil {
		return nil, other
	}
	if err != nil {
		return nil, remedy.With(err)
	}
	l := &Lab{dir: dir}
	if err := json.Unmarshal(data, l); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w; %s", filepath.Join(dir, "lab.json"), err, removalAdvice(dir))
	}
	if err := l.validate(); err != nil {
		return nil, err
	}
	return l, nil
}

// Create makes the folder of a new lab and locks it; nothing is recorded yet.
func Create(name string) (*Lab, error) {
	dir, err := Dir(name)
	if err != nil {
		return nil, err
	}
	return CreateDir(dir)
}

// CreateDir is Create by the lab's folder.
func CreateDir(dir string) (*Lab, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		// A `down` has deleted the folder amid MkdirAll, and an `up` may have made it again.
		if info, statErr := os.Lstat(dir); errors.Is(err, fs.ErrExist) && (errors.Is(statErr, fs.ErrNotExist) ||
			statErr == nil && info.IsDir()) {
			return CreateDir(dir)
		}
		return nil, remedy.With(fmt.Errorf("the lab's folder: %w", err))
	}
	if err := checkOwner(dir); err != nil {
		return nil, err
	}
	l := InDir(dir, filepath.Base(dir))
	if err := l.Lock(); !errors.Is(err, fs.ErrNotExist) {
		return l, err
	}
	return CreateDir(dir) // A `down` was faster.
}

// InDir is a lab in this folder, which must exist and hold nothing else. The folder is outside the
// folder of all labs, so that no command finds the lab by its name. Nothing is recorded yet.
func InDir(dir, name string) *Lab { return &Lab{Name: name, Ports: map[string]int{}, dir: dir} }

// Unrecorded is a lab with a name and a folder, whose record is not there or is not read.
func Unrecorded(name string) (*Lab, error) {
	dir, err := Dir(name)
	return InDir(dir, name), err
}

// Save writes the record, all or nothing.
func (l *Lab) Save() error {
	l.Format = recordFormat
	data, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(l.Path("lab.json"), append(data, '\n'))
}

// Lock keeps other `up` and `down` commands off this lab until Unlock or the
// end of the process.
func (l *Lab) Lock() error {
	f, err := os.Open(l.dir)
	if err != nil {
		return errors.Join(checkOwner(l.dir), remedy.With(err))
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("another command is working on lab %q%s; wait for it to end", l.Name, lockHolder(l.dir))
		}
		return fmt.Errorf("locking %s: %w", l.dir, err)
	}
	if !isSameFolder(f, l.dir) { // A `down` has deleted the folder since it was opened.
		_ = f.Close()
		return l.Lock()
	}
	l.lock = f
	return nil
}

// Locked tells whether a command works on the lab now. Where the kernel does not say who holds
// the lock, it is false.
func (l *Lab) Locked() bool { return lockHolder(l.dir) != "" }

// Unlock lets other commands work on the lab.
func (l *Lab) Unlock() {
	if l.lock != nil {
		_ = l.lock.Close()
		l.lock = nil
	}
}

// Remove deletes the lab's folder. It deletes the folder of all labs, too, if it is empty then
// and is not one that CCMLAB_HOME names.
func (l *Lab) Remove() error {
	if err := l.deleteContents(); err != nil {
		return err
	}
	if err := os.RemoveAll(l.dir); err != nil {
		return err
	}
	if os.Getenv("CCMLAB_HOME") == "" {
		_ = os.Remove(filepath.Dir(l.dir)) // Fails while other labs are in it, as it should.
	}
	return nil
}

// Path is the path of a file or folder of the lab.
func (l *Lab) Path(elem ...string) string { return filepath.Join(append([]string{l.dir}, elem...)...) }

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

// recordFormat is the version of the record's format that this program writes. It reads no newer.
const recordFormat = 1

// maxSlot is the highest X of 127.X.0.0/16 that a lab could have.
const maxSlot = 255

// checkOwner is an error for a folder that belongs to another user, except for root.
func checkOwner(dir string) error {
	var stat unix.Stat_t
	me := os.Geteuid()
	// A folder that cannot be examined is no error here: using it will fail.
	if err := unix.Stat(dir, &stat); err == nil && me != 0 && int(stat.Uid) != me {
		return fmt.Errorf(
			"lab %q in %s belongs to %s; use another --name, or set CCMLAB_HOME to a folder of your own",
			filepath.Base(dir), filepath.Dir(dir), UserName(int(stat.Uid)),
		)
	}
	return nil
}

// UserName names a user in a message, by the number where the user has no name.
func UserName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return "user " + u.Username
	}
	return fmt.Sprintf("user %d", uid)
}

// validate is an error when the record cannot be used.
func (l *Lab) validate() error {
	name := filepath.Base(l.dir)
	remove := removalAdvice(l.dir)
	inContainers := cmp.Or(l.Cluster, "embedded") != "embedded" && l.Cluster != "external"
	switch {
	case l.Format > recordFormat:
		return fmt.Errorf(
			"lab %q was made by a newer version of lab (its record has format %d, this one reads up to %d); use that version, or %s",
			name, l.Format, recordFormat, remove,
		)
	case l.Name != name:
		return fmt.Errorf("the record of lab %q is damaged: it is called %q; %s", name, l.Name, remove)
	case !inContainers && (l.Slot < 1 || l.Slot > maxSlot || len(l.Ports) == 0):
		return fmt.Errorf(
			"the record of lab %q is damaged: it does not say which addresses and ports are its own; %s", name, remove,
		)
	}
	return nil
}

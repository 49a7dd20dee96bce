// Package classroom gives each learner in a room a seat on one machine: a folder with
// labs of their own, an SSH login, and a page for all that shows how far each learner
// is. Room is where to begin; the server is in server.go.
package classroom

import (
	"cmp"
	"crypto/rand"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/crypto/bcrypt"
	"golang.org/x/sys/unix"

	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/lessons"
	"github.com/ccmlab/ccmlab/lab/remedy"
	"github.com/ccmlab/ccmlab/lab/state"
)

// classroomDir is the classroom's folder within the folder of all labs. No lab can have
// this name. It is short because the paths of the kubelets' sockets are limited.
const classroomDir = ".class"

// Room is this user's classroom.
type Room struct {
	dir  string
	lock *os.File

	// Listen is the address of the page and of the SSH server.
	Listen string `json:"listen"`
	// PagePort and SSHPort are the ports of the page and of the SSH server.
	PagePort int `json:"pagePort"`
	SSHPort  int `json:"sshPort"`
	// PageURL is the page's URL for learners, if it is not this room's own.
	PageURL string `json:"pageURL,omitempty"`
	// Hosts are further names under which the page answers.
	Hosts []string `json:"hosts,omitempty"`
	// SeatInstances is how many instances each seat may have.
	SeatInstances int `json:"seatInstances"`
	// Seats are in the order in which they were added.
	Seats []Seat `json:"seats"`
}

// Seat is a learner's place.
type Seat struct {
	Name string `json:"name"`
	// Hash is the bcrypt hash of its password.
	Hash string `json:"hash"`
}

// ErrNone means that there is no classroom.
var ErrNone = errors.New("there is no classroom; `lab classroom up` makes one")

// Open returns the room as it is recorded now.
func Open() (*Room, error) {
	root, err := state.Root()
	if err != nil {
		return nil, err
	}
	r := &Room{dir: filepath.Join(root, classroomDir)}
	if err := state.CheckPrivate(r.dir); err != nil {
		return nil, err
	}
	return r, r.load()
}

// Enter is Open for a command that changes the room. It holds the room's lock until
// Leave. A room that does not exist is returned without seats.
func Enter() (*Room, error) {
	root, err := state.Root()
	if err != nil {
		return nil, err
	}
	r := &Room{dir: filepath.Join(root, classroomDir)}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return nil, remedy.With(err)
	}
	// Whoever may write the passwords' file gets a shell as this user.
	if err := state.CheckPrivate(r.dir); err != nil {
		return nil, err
	}
	if r.lock, err = os.OpenFile(filepath.Join(r.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, remedy.With(err)
	}
	if err := unix.Flock(int(r.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		r.Leave()
		return nil, errors.New("another command changes the classroom just now; wait for it, or end it with Ctrl-C")
	}
	if err := r.load(); err != nil && !errors.Is(err, ErrNone) {
		r.Leave()
		return nil, err
	}
	return r, nil
}

// Leave releases the lock of Enter.
func (r *Room) Leave() { _ = r.lock.Close() }

func (r *Room) configFile() string { return filepath.Join(r.dir, "classroom.json") }

func (r *Room) load() error {
	data, err := os.ReadFile(r.configFile())
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNone
	}
	if err != nil {
		return remedy.With(err)
	}
	if err := json.Unmarshal(data, r); err != nil {
		return fmt.Errorf(
			"%s is damaged: %w; delete it, and `lab classroom up` makes new passwords for the seats as they are",
			r.configFile(), err,
		)
	}
	return nil
}

func (r *Room) save() error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(r.configFile(), append(data, '\n'))
}

// MaxSeats is how many seats a room may have: each lab takes a slot of addresses, and
// some lessons have two labs at a time.
func MaxSeats() int {
	first, last := local.Slots()
	return (last - first + 1) / 2
}

const (
	// DefaultSeatInstances leaves a learner a few beside the nodes of any lesson. Each takes about 75 MB.
	DefaultSeatInstances = 10
	// MinSeatInstances is what lessons need: two labs of two nodes, or one of four to which a task adds one.
	MinSeatInstances = 5
)

// Card is what a learner is handed.
type Card struct {
	Seat     string `json:"seat"`
	Password string `json:"password"`
}

// Grow adds seats until there are that many, and returns the cards of the new ones. It
// removes none: somebody may sit there.
func (r *Room) Grow(seats int) ([]Card, error) {
	names := r.Names()
	for n := 1; len(names) < seats; n++ {
		if name := fmt.Sprintf("seat-%02d", n); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return r.Add(names...)
}

// seatName matches a name that nothing else in the room's folder has. It is short
// because the paths of the kubelets' sockets are limited.
var seatName = regexp.MustCompile(`^[a-z][-a-z0-9]{0,19}-[0-9]{1,4}$`)

// CheckName is an error for a name that no seat can have.
func CheckName(name string) error {
	if !seatName.MatchString(name) {
		return fmt.Errorf(
			"%.40q: want small letters, digits and hyphens, 20 at most, then a hyphen and a number, such as seat-3",
			name,
		)
	}
	return nil
}

// Add creates the seats that do not exist yet, and returns their cards.
func (r *Room) Add(names ...string) ([]Card, error) {
	var cards []Card
	for _, name := range names {
		if err := CheckName(name); err != nil {
			return nil, err
		}
		if slices.Contains(r.Names(), name) {
			continue
		}
		s := Seat{Name: name}
		card, err := s.generatePassword()
		if err != nil {
			return nil, err
		}
		if err := os.MkdirAll(r.workDir(s.Name), 0o700); err != nil {
			return nil, remedy.With(err)
		}
		r.Seats, cards = append(r.Seats, s), append(cards, card)
	}
	return cards, r.save()
}

// MinPassword is the least number of characters of a password that a person chooses.
const MinPassword = 8

// CheckPassword is an error for a password that is too short, or longer than bcrypt
// reads.
func CheckPassword(password string) error {
	switch {
	case len(password) < MinPassword:
		return fmt.Errorf("a password of %d characters; %d are the least", len(password), MinPassword)
	case len(password) > maxPassword:
		return fmt.Errorf("a password of %d bytes; %d are the most", len(password), maxPassword)
	}
	return nil
}

// maxPassword is the number of bytes that bcrypt reads.
const maxPassword = 72

// Admit sets a seat's password to one that the caller knows, so there is no card.
func (r *Room) Admit(name, password string) error {
	s, err := r.findSeat(name)
	if err != nil {
		return err
	}
	if err := errors.Join(CheckPassword(password), s.setPassword(password)); err != nil {
		return err
	}
	return r.save()
}

// Renew gives seats new passwords. Sessions that are open stay open.
func (r *Room) Renew(names ...string) ([]Card, error) {
	var cards []Card
	for _, name := range names {
		s, err := r.findSeat(name)
		if err != nil {
			return nil, err
		}
		card, err := s.generatePassword()
		if err != nil {
			return nil, err
		}
		cards = append(cards, card)
	}
	return cards, r.save()
}

// generatePassword sets a random password of 60 bits. It uses letters and digits that
// are not mistaken for one another on paper.
func (s *Seat) generatePassword() (Card, error) {
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return Card{}, err
	}
	text := base32.NewEncoding("abcdefghijkmnpqrstuvwxyz23456789").WithPadding(base32.NoPadding).
		EncodeToString(random[:])
	password := strings.Join([]string{text[:4], text[4:8], text[8:12]}, "-")
	return Card{Seat: s.Name, Password: password}, s.setPassword(password)
}

// setPassword stores the password's hash.
func (s *Seat) setPassword(password string) error {
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.DefaultCost)
	s.Hash = string(hash)
	return err
}

func (r *Room) findSeat(name string) (*Seat, error) {
	i := slices.IndexFunc(r.Seats, func(s Seat) bool { return s.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("there is no %s; the seats are %s", name, strings.Join(r.Names(), ", "))
	}
	return &r.Seats[i], nil
}

// Names returns the names of the seats.
func (r *Room) Names() []string {
	var names []string
	for _, s := range r.Seats {
		names = append(names, s.Name)
	}
	return names
}

// Home is the folder of a seat's labs.
func (r *Room) Home(seat string) string { return filepath.Join(r.dir, seat) }

// workDir is the working directory of a learner's shell. No lab can have this name.
func (r *Room) workDir(seat string) string { return filepath.Join(r.Home(seat), ".work") }

// lessonsSeat gives access to a learner's progress.
func (r *Room) lessonsSeat(seat string) *lessons.Seat {
	return lessons.At(r.Home(seat), lessons.DefaultName)
}

// Host is the name or address by which others reach this machine.
func (r *Room) Host() string {
	if ip := net.ParseIP(r.Listen); ip == nil || !ip.IsUnspecified() {
		return r.Listen
	}
	addresses, _ := net.InterfaceAddrs() // None is as good as an error.
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() && n.IP.To4() != nil {
			return n.IP.String()
		}
	}
	return "localhost"
}

// Page is the URL of the page for learners.
func (r *Room) Page() string { return cmp.Or(r.PageURL, r.ownPageURL()) }

// ownPageURL is the URL of this room's own page.
func (r *Room) ownPageURL() string {
	return "http://" + net.JoinHostPort(r.Host(), strconv.Itoa(r.PagePort)) + "/"
}

// Package classroom gives each learner of a room a seat on one machine: a folder of
// labs and a way in that are theirs alone, and for all a page that shows how far each
// is.
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

	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/lessons"
	"github.com/ccmlab/ccmlab/lab/remedy"
	"github.com/ccmlab/ccmlab/lab/state"
)

// folder is the room's, in the folder of all labs: no lab can have this name. It is
// short, because the paths of the kubelets' sockets may be.
const folder = ".class"

// Room is the classroom of this user.
type Room struct {
	dir  string
	lock *os.File

	// Listen is the address at which the page and the seats are reached.
	Listen string `json:"listen"`
	// PagePort is the port of the page, SSHPort that of the seats.
	PagePort int `json:"pagePort"`
	SSHPort  int `json:"sshPort"`
	// PageURL is where learners have the page, if not here.
	PageURL string `json:"pageURL,omitempty"`
	// Seats are in the order of their names.
	Seats []Seat `json:"seats"`
}

// Seat is a learner's.
type Seat struct {
	Name string `json:"name"`
	// Hash is that of its password (bcrypt).
	Hash string `json:"hash"`
}

// ErrNone means that there is no classroom.
var ErrNone = errors.New("there is no classroom; `lab classroom up` makes one")

// Open is the room as it is now.
func Open() (*Room, error) {
	root, err := state.Root()
	if err != nil {
		return nil, err
	}
	r := &Room{dir: filepath.Join(root, folder)}
	return r, r.read()
}

// Enter is Open for who changes the room, which nobody else does until Leave. Where
// there is none it is one without seats.
func Enter() (*Room, error) {
	root, err := state.Root()
	if err != nil {
		return nil, err
	}
	r := &Room{dir: filepath.Join(root, folder)}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return nil, remedy.With(err)
	}
	if r.lock, err = os.OpenFile(filepath.Join(r.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, remedy.With(err)
	}
	if err := unix.Flock(int(r.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		r.Leave()
		return nil, errors.New("another command changes the classroom just now; wait for it, or end it with Ctrl-C")
	}
	if err := r.read(); err != nil && !errors.Is(err, ErrNone) {
		r.Leave()
		return nil, err
	}
	return r, nil
}

// Leave lets others change the room.
func (r *Room) Leave() { _ = r.lock.Close() }

func (r *Room) file() string { return filepath.Join(r.dir, "classroom.json") }

func (r *Room) read() error {
	data, err := os.ReadFile(r.file())
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNone
	}
	if err != nil {
		return remedy.With(err)
	}
	if err := json.Unmarshal(data, r); err != nil {
		return fmt.Errorf("%s is damaged: %w; delete it, and `lab classroom up` makes new passwords for the seats as they are", r.file(), err)
	}
	return nil
}

func (r *Room) save() error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return state.WriteFile(r.file(), append(data, '\n'))
}

// MaxSeats is how many a room may have: some lessons have two labs at a time, and a lab
// has a network of its own.
func MaxSeats() int {
	first, last := local.Slots()
	return (last - first + 1) / 2
}

// Card is what a learner is handed.
type Card struct {
	Seat     string `json:"seat"`
	Password string `json:"password"`
}

// Grow sees to it that there are so many seats, and returns the cards of those that
// are new. There are never fewer than before: somebody may sit there.
func (r *Room) Grow(seats int) ([]Card, error) {
	names := r.Names()
	for n := 1; len(names) < seats; n++ {
		if name := fmt.Sprintf("seat-%02d", n); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return r.Add(names...)
}

// seatName is a name that nothing else in the room's folder has, and short, as the paths
// of the kubelets' sockets are to be.
var seatName = regexp.MustCompile(`^[a-z][-a-z0-9]{0,19}-[0-9]{1,4}$`)

// CheckName is an error for what no seat can be called.
func CheckName(name string) error {
	if !seatName.MatchString(name) {
		return fmt.Errorf("%.40q: want small letters, digits and hyphens, 20 at most, then a hyphen and a number, such as seat-3", name)
	}
	return nil
}

// Add sees to it that there are seats of these names, and returns the cards of those
// that are new.
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
		card, err := s.renew()
		if err != nil {
			return nil, err
		}
		if err := os.MkdirAll(r.work(s.Name), 0o700); err != nil {
			return nil, remedy.With(err)
		}
		r.Seats, cards = append(r.Seats, s), append(cards, card)
	}
	return cards, r.save()
}

// MinPassword is how many characters a password has to have that a person chooses.
const MinPassword = 8

// CheckPassword is an error for one that is too short, or longer than is looked at.
func CheckPassword(password string) error {
	switch {
	case len(password) < MinPassword:
		return fmt.Errorf("a password of %d characters; %d are the least", len(password), MinPassword)
	case len(password) > maxPassword:
		return fmt.Errorf("a password of %d bytes; %d are the most", len(password), maxPassword)
	}
	return nil
}

// maxPassword is bcrypt's.
const maxPassword = 72

// Admit gives a seat a password that is known elsewhere: no card says it.
func (r *Room) Admit(name, password string) error {
	s, err := r.seat(name)
	if err != nil {
		return err
	}
	if err := errors.Join(CheckPassword(password), s.set(password)); err != nil {
		return err
	}
	return r.save()
}

// Renew gives seats new passwords. Who is in stays in.
func (r *Room) Renew(names ...string) ([]Card, error) {
	var cards []Card
	for _, name := range names {
		s, err := r.seat(name)
		if err != nil {
			return nil, err
		}
		card, err := s.renew()
		if err != nil {
			return nil, err
		}
		cards = append(cards, card)
	}
	return cards, r.save()
}

// renew makes a password of 60 bits, in letters and digits that are not mistaken for
// one another on paper.
func (s *Seat) renew() (Card, error) {
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return Card{}, err
	}
	text := base32.NewEncoding("abcdefghijkmnpqrstuvwxyz23456789").WithPadding(base32.NoPadding).EncodeToString(random[:])
	password := strings.Join([]string{text[:4], text[4:8], text[8:12]}, "-")
	return Card{Seat: s.Name, Password: password}, s.set(password)
}

// set keeps a password as a hash.
func (s *Seat) set(password string) error {
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.DefaultCost)
	s.Hash = string(hash)
	return err
}

func (r *Room) seat(name string) (*Seat, error) {
	i := slices.IndexFunc(r.Seats, func(s Seat) bool { return s.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("there is no %s; the seats are %s", name, strings.Join(r.Names(), ", "))
	}
	return &r.Seats[i], nil
}

// Names are those of the seats.
func (r *Room) Names() []string {
	var names []string
	for _, s := range r.Seats {
		names = append(names, s.Name)
	}
	return names
}

// Home is the folder of a seat's labs.
func (r *Room) Home(seat string) string { return filepath.Join(r.dir, seat) }

// work is where somebody is who comes to a seat: what they write is there. No lab can
// have this name.
func (r *Room) work(seat string) string { return filepath.Join(r.Home(seat), ".work") }

// lessons is how far a learner is.
func (r *Room) lessons(seat string) *lessons.Seat {
	return lessons.At(r.Home(seat), lessons.DefaultName)
}

// Host is by which name others reach this machine.
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

// Page is where learners have the page.
func (r *Room) Page() string { return cmp.Or(r.PageURL, r.page()) }

// page is where the room's own is.
func (r *Room) page() string {
	return "http://" + net.JoinHostPort(r.Host(), strconv.Itoa(r.PagePort)) + "/"
}

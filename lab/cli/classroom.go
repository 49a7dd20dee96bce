package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/lab/classroom"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/doctor"
)

func newClassroom(o *globalOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "classroom",
		Short: "Run the lessons with a whole class: a seat for each, and a page that shows how far they are",
		Long: `classroom gives each learner a seat on this machine: a folder of labs of their own,
reached over SSH with a password of its own. Learners need nothing but an SSH client and a
browser. A page, for the wall, shows how far each seat is, as it happens; the text of the
lessons is beside it.

All seats are this user's: they keep learners from each other's labs by mistake, not on
purpose. For people who do not trust each other give each a machine, a container or a pod
(manifests/classroom).`,
		Example: `  lab classroom up --seats 20 --listen 0.0.0.0   # in the room's network
  lab classroom status
  lab classroom run -- lab lesson start taint    # everybody goes on
  lab classroom shell seat-07                    # look over a shoulder
  lab classroom down
  ./lab classroom --bundle ccmlab-bundle.tar.gz up --seats 20   # without internet`,
	}
	cmd.AddCommand(
		newClassroomUp(o), newClassroomStatus(), newClassroomCards(), newClassroomRun(), newClassroomShell(),
		newClassroomDown(o), newClassroomPage(), newClassroomServe(),
	)
	addBundleFlag(cmd, o)
	return cmd
}

// classroomUpFlags are the flags of lab classroom up.
type classroomUpFlags struct {
	seats        int
	seat         string
	passwordFile string
	instances    int
	lesson       string
	listen       string
	pagePort     int
	sshPort      int
	pageURL      string
	hosts        []string
	foreground   bool
}

// noLesson is the value of --lesson that begins no lesson at new seats.
const noLesson = "none"

func newClassroomUp(o *globalOptions) *cobra.Command {
	var c classroomUpFlags
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Make the seats, begin a lesson at each, and let learners in",
		Long: `up opens the door, makes the seats that are missing, prints a card for each new one, and
begins a lesson at each seat where none was begun. It can be interrupted, and completes
what there is: after down, or a restart of the machine, everybody is where they were, at
the beginning of their lesson.

It is reached from this machine alone unless --listen says otherwise. The page and the
text are not secret and have no password; the seats have.

In a container, --foreground stays until it is told to end, and --seat names the one seat
that is there.`,
		Example: `  lab classroom up --seats 20
  lab classroom up --seats 20 --listen 0.0.0.0 --lesson taint
  lab classroom up --seats 24    # four more
  lab classroom up --foreground --listen 0.0.0.0 --seat seat-3 --password-file FILE   # a pod's`,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.runUp(cmd, o) },
	}
	cmd.Flags().IntVar(
		&c.seats, "seats", 0,
		fmt.Sprintf("how many there are to be, up to %d (default 1, or as many as there are)", classroom.MaxSeats()),
	)
	cmd.Flags().StringVar(
		&c.lesson, "lesson", "",
		"the `ID` of the lesson to begin at new seats, or none (default taint, whose lab takes the least to begin with)",
	)
	cmd.Flags().IntVar(&c.instances, "seat-instances", 0, fmt.Sprintf(
		"how many instances each seat may have, in lessons that begin later (default %d, or as before); "+
			"at once: \"lab classroom run -- fakecloud quotas set --instances N\"",
		classroom.DefaultSeatInstances,
	))
	cmd.Flags().StringVar(
		&c.listen, "listen", "",
		"the `ADDRESS` at which page and seats are reached: 0.0.0.0 is every one of this machine (default 127.0.0.1, or as before)",
	)
	cmd.Flags().StringVar(
		&c.seat, "seat", "", "a seat of this `NAME` is to be there, such as seat-3, in place of a number of them",
	)
	cmd.Flags().StringVar(&c.passwordFile, "password-file", "", fmt.Sprintf(
		"the `FILE` that has the password of --seat, %d characters or more, and is read each time (default: a random one, printed once); of a folder, which is what Kubernetes mounts where a Secret has no such key, nothing is read",
		classroom.MinPassword,
	))
	cmd.Flags().BoolVar(&c.foreground, "foreground", false, "stay, and end what down ends at the end (Ctrl-C, SIGTERM)")
	cmd.Flags().StringVar(
		&c.pageURL, "page-url", "",
		"the `URL` that learners are told for the page and the text, where those are reached by another name than this machine's",
	)
	addHostFlag(cmd, &c.hosts)
	cmd.Flags().IntVar(&c.pagePort, "page-port", 0, "the page's port (default 8400, or as before)")
	cmd.Flags().IntVar(&c.sshPort, "ssh-port", 0, "the seats' port (default 2222, or as before)")
	clikit.AddOutput(cmd, "table", "json", "yaml")
	_ = cmd.RegisterFlagCompletionFunc("lesson", completeLesson)
	return cmd
}

// addHostFlag adds the flag --host for further names of a page.
func addHostFlag(cmd *cobra.Command, hosts *[]string) {
	cmd.Flags().StringSliceVar(
		hosts, "host", nil,
		"a further `NAME` under which browsers reach the page, beside addresses, localhost, and this machine's name; can be repeated",
	)
}

// runUp checks the flags and opens the classroom. With --foreground it stays until it
// is told to end, and then closes the classroom.
func (c *classroomUpFlags) runUp(cmd *cobra.Command, o *globalOptions) error {
	lesson, err := c.firstLessonID()
	if err != nil {
		return err
	}
	password, err := c.readPassword()
	if err != nil {
		return err
	}
	room, err := classroom.Enter()
	if err != nil {
		return err
	}
	if err := c.configureRoom(room); err != nil {
		room.Leave()
		return err
	}
	err = c.openRoom(cmd, o, room, lesson, password)
	room.Leave() // While this stays, lab classroom cards must be able to lock the room.
	if !c.foreground {
		return err
	}
	ctx := cmd.Context()
	if err == nil {
		err = room.Stay(ctx)
	}
	if ctx.Err() == nil {
		return err // Another lab classroom up completes what there is.
	}
	return errors.Join(err, closeRoom(context.WithoutCancel(ctx), o, false))
}

// openRoom starts the server, makes missing seats, prints their cards, and begins the
// lesson at seats that have none.
func (c *classroomUpFlags) openRoom(
	cmd *cobra.Command,
	o *globalOptions,
	room *classroom.Room,
	lesson, password string,
) error {
	if err := c.checkMachine(o, room, lesson); err != nil {
		return err
	}
	steps := o.newSteps()
	if err := steps.Do(
		"door", func(func(string)) (string, error) { return "open: " + room.Page(), room.StartServer(cmd.Context()) },
	); err != nil {
		return err
	}
	// A seat whose card was not printed could not be entered: seats are made when the door is open.
	cards, err := c.addMissingSeats(room, password)
	if err != nil {
		return err
	}
	err = clikit.Print(cmd, cards, func(w io.Writer) error { return printCards(w, room, cards) })
	if err != nil {
		return err
	}
	return room.Begin(cmd.Context(), lesson, steps)
}

// addMissingSeats makes the seats that are missing, and returns the cards to hand out.
// A password from --password-file is known elsewhere and gets no card.
func (c *classroomUpFlags) addMissingSeats(room *classroom.Room, password string) ([]classroom.Card, error) {
	if c.seat == "" {
		return room.Grow(c.seats)
	}
	cards, err := room.Add(c.seat)
	if err != nil || password == "" {
		return cards, err
	}
	if err := room.Admit(c.seat, password); err != nil {
		return nil, fmt.Errorf("%s: %w", c.passwordFile, err)
	}
	return nil, nil
}

// readPassword returns the password in the file of --password-file, or "" if there is
// none.
func (c *classroomUpFlags) readPassword() (string, error) {
	if c.passwordFile == "" {
		return "", nil
	}
	data, err := os.ReadFile(c.passwordFile)
	if errors.Is(err, syscall.EISDIR) {
		return "", nil
	}
	if err != nil {
		return "", clikit.Usagef("--password-file: %w", err)
	}
	password := strings.TrimRight(string(data), "\r\n")
	if err := classroom.CheckPassword(password); err != nil {
		return "", clikit.Usagef("--password-file %s: %w", c.passwordFile, err)
	}
	return password, nil
}

// firstLessonID returns the ID of the lesson to begin at new seats, or "" for none.
func (c *classroomUpFlags) firstLessonID() (string, error) {
	if c.lesson == noLesson {
		return "", nil
	}
	if c.lesson != "" {
		l, err := findLesson(c.lesson)
		if err != nil {
			return "", err
		}
		return l.ID, nil
	}
	l, err := classroom.DefaultLesson()
	if err != nil {
		return "", err
	}
	return l.ID, nil
}

// configureRoom checks the flags against the room and sets its addresses and ports. A
// flag that was not given leaves what the room had before.
func (c *classroomUpFlags) configureRoom(room *classroom.Room) error {
	if err := classroom.CheckName(c.seat); err != nil && c.seat != "" {
		return clikit.Usagef("--seat %w", err)
	}
	switch {
	case c.seat != "" && c.seats != 0:
		return clikit.Usagef("--seat and --seats: want one of them")
	case c.passwordFile != "" && c.seat == "":
		return clikit.Usagef("--password-file: say with --seat which seat's it is")
	case c.seats < 0 || c.seats > classroom.MaxSeats():
		return clikit.Usagef("--seats %d: want 1 to %d", c.seats, classroom.MaxSeats())
	case c.instances != 0 && c.instances < classroom.MinSeatInstances:
		return clikit.Usagef(
			"--seat-instances %d: want %d or more, which the lessons need", c.instances, classroom.MinSeatInstances,
		)
	case c.seats > 0 && c.seats < len(room.Seats):
		return clikit.Usagef(
			"--seats %d: there are %d, and somebody may have written something at any; `lab classroom down --delete` first removes them all",
			c.seats, len(room.Seats),
		)
	case c.seats == 0 && c.seat == "" && len(room.Seats) == 0:
		c.seats = 1
	}
	room.Listen = cmp.Or(c.listen, room.Listen, "127.0.0.1")
	room.PageURL = cmp.Or(c.pageURL, room.PageURL)
	if len(c.hosts) > 0 {
		room.Hosts = c.hosts
	}
	room.SeatInstances = cmp.Or(c.instances, room.SeatInstances, classroom.DefaultSeatInstances)
	room.PagePort = cmp.Or(c.pagePort, room.PagePort, 8400)
	room.SSHPort = cmp.Or(c.sshPort, room.SSHPort, 2222)
	return nil
}

// What a lab of three nodes takes, roughly: memory, and cores while it is at rest. How it was
// measured is in lab/FIGURES.md.
const (
	labMemoryBytes = 350 << 20
	labCoresAtRest = 0.085
)

// checkMachine returns an error if the labs to be started need more inotify instances
// than are left, and prints a warning if they need more memory or cores than there are.
func (c *classroomUpFlags) checkMachine(o *globalOptions, room *classroom.Room, lesson string) error {
	atRest, most, err := classroom.Labs(lesson)
	if err != nil {
		return err
	}
	missing, err := room.Missing()
	if err != nil {
		return err
	}
	added := max(0, c.seats-len(room.Seats))
	if c.seat != "" && !slices.Contains(room.Names(), c.seat) {
		added++
	}
	starting := most * (missing + added)
	if starting == 0 {
		return nil
	}
	if err := doctor.ThisMachine(cluster.KindEmbedded).CheckInotify(starting); err != nil {
		return fmt.Errorf("nothing was started: %w", err)
	}
	var available uint64 = math.MaxUint64 // If it is unknown, there is no warning.
	if m := classroom.ThisMachine(); m != nil {
		available = m.MemoryAvailable
	}
	// The labs that run already share the cores with the others. GOMAXPROCS knows a container's limit.
	atRest *= len(room.Seats) + added
	for _, warning := range shortages(starting, available, atRest, runtime.GOMAXPROCS(0)) {
		o.newSteps().Say(" ! %s", warning)
	}
	return nil
}

// shortages are warnings: of memory for the labs to be started, and of cores for all that will be at rest.
func shortages(starting int, available uint64, atRest, cores int) (warnings []string) {
	if need := uint64(starting) * labMemoryBytes; need > available { //nolint:gosec // It is not negative.
		warnings = append(warnings, fmt.Sprintf(
			"%d labs take about %.1f GB of memory, and %.1f GB are free: some may be killed. Fewer seats, or more memory.",
			starting, float64(need)/(1<<30), float64(available)/(1<<30),
		))
	}
	if need := float64(atRest) * labCoresAtRest; need > float64(cores) {
		warnings = append(warnings, fmt.Sprintf(
			"%d labs at rest use about %.1f of %d cores: they are slow, and some may not come up. Fewer seats, or more cores.",
			atRest, need, cores,
		))
	}
	return warnings
}

// printCards prints the cards to hand out. Their passwords cannot be shown again,
// because only hashes are kept.
func printCards(w io.Writer, room *classroom.Room, cards []classroom.Card) error {
	if len(cards) == 0 {
		return nil
	}
	fingerprint, err := room.Fingerprint()
	if err != nil {
		return err
	}
	var rows [][]string
	for _, c := range cards {
		rows = append(rows, []string{c.Seat, fmt.Sprintf("ssh -p %d %s@%s", room.SSHPort, c.Seat, room.Host()), c.Password})
	}
	p := newParagraphWriter(w)
	p.printTable([]string{"SEAT", "TO COME IN", "PASSWORD"}, rows)
	p.printLine(
		"\nThe lessons, how far each seat is, and its lab: %s\nThe door's key is %s.\n"+
			"Passwords are kept as hashes and cannot be printed again: `lab classroom cards SEAT` makes new ones.\n",
		room.Page(), fingerprint,
	)
	return p.err
}

func newClassroomCards() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "cards SEAT... | --all",
		Short: "Give seats new passwords, and print their cards",
		Long: `cards prints the cards of seats again. Passwords are kept as hashes, so each card has a new
one, and the seat's earlier password is not valid any more. Whoever is logged in stays.`,
		Example:           "  lab classroom cards seat-03 seat-04\n  lab classroom cards --all",
		ValidArgsFunction: completeSeats,
		RunE: func(cmd *cobra.Command, args []string) error {
			room, err := classroom.Enter()
			if err != nil {
				return err
			}
			defer room.Leave()
			if all == (len(args) > 0) {
				return clikit.Usagef("whose cards? want SEATs, or --all; the seats are %s", strings.Join(room.Names(), ", "))
			}
			if all {
				args = room.Names()
			}
			cards, err := room.Renew(args...)
			if err != nil {
				return clikit.Usage(err)
			}
			return clikit.Print(cmd, cards, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, "These passwords are new. The earlier ones of these seats are not valid any more.")
				return errors.Join(err, printCards(w, room, cards))
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "every seat")
	clikit.AddOutput(cmd, "table", "json", "yaml")
	return cmd
}

// completeSeats completes the names of seats.
func completeSeats(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	room, err := classroom.Open()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return room.Names(), cobra.ShellCompDirectiveNoFileComp
}

func newClassroomStatus() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Print how far each seat is",
		Long:    "status looks at every seat, and prints what the page shows. It exits with 1 where the\npage is not there.",
		Example: "  lab classroom status\n  lab classroom status -o json | jq -r '.seats[] | select(.lesson == null) | .name'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			room, err := classroom.Open()
			if err != nil {
				return err
			}
			v, err := room.Look(cmd.Context())
			if err != nil {
				return err
			}
			serving, err := room.Serving()
			if err != nil {
				return err
			}
			err = clikit.Print(cmd, v, func(w io.Writer) error { return printClassroomStatus(w, room, v) })
			if err == nil && !serving {
				err = errors.New(
					"the door is closed: nobody comes in, and there is no page; `lab classroom up` opens it",
				)
			}
			return err
		},
	}
	clikit.AddOutput(cmd, "table", "json", "yaml")
	return cmd
}

// printClassroomStatus prints a table of the seats' progress, and the page's URL.
func printClassroomStatus(w io.Writer, room *classroom.Room, v *classroom.View) error {
	var rows [][]string
	for _, s := range v.Seats {
		row := []string{s.Name, "", "", "", "", ""}
		if l := s.Lesson; l != nil {
			now := "all done"
			if task := l.Current(); task != nil {
				now = task.Title
			}
			row = []string{
				s.Name, l.ID, fmt.Sprintf("%d/%d", l.Done(), len(l.Tasks)), now,
				cmp.Or(s.OnTask(v.At), "nobody here yet"), fmt.Sprint(l.Hints()),
			}
		}
		rows = append(rows, append(row, fmt.Sprintf("%d/%d", len(s.Finished), v.Lessons)))
	}
	p := newParagraphWriter(w)
	p.printTable([]string{"SEAT", "LESSON", "TASKS", "NOW AT", "FOR", "HINTS", "FINISHED"}, rows)
	for _, s := range v.Seats {
		if s.Problem != "" {
			p.printLine("\nproblem: %s: %s", s.Name, s.Problem)
		}
	}
	p.printLine("\nThe page: %s", room.Page())
	return p.err
}

func newClassroomRun() *cobra.Command {
	var chosen []string
	cmd := &cobra.Command{
		Use:   "run [--seat SEAT]... -- COMMAND [ARGUMENT]...",
		Short: "Run a program at every seat, as if it was typed there",
		Long: `run runs a program at each seat, with the environment that a learner has there: kubectl,
fakecloud and lab speak to the seat's lab. What it says is printed by seat. It exits with 1
if it fails anywhere.`,
		Example: `  lab classroom run -- lab lesson start taint
  lab classroom run --seat seat-03 -- lab lesson reset
  lab classroom run -- kubectl get nodes
  lab classroom run -- bash -c 'fakecloud faults create --operation instances.get --status 503'`,
		Args: clikit.RequireArguments(1, 0),
		RunE: func(cmd *cobra.Command, args []string) error {
			room, err := classroom.Open()
			if err != nil {
				return err
			}
			return room.Each(cmd.Context(), seatsOrAll(chosen, room), args, func(did classroom.Did) {
				printSeatOutput(cmd.OutOrStdout(), did)
			})
		},
	}
	cmd.Flags().StringSliceVar(&chosen, "seat", nil, "the `SEAT`s, instead of all")
	_ = cmd.RegisterFlagCompletionFunc("seat", completeSeats)
	return cmd
}

// seatsOrAll returns the chosen seats, or all seats of the room if none are chosen.
func seatsOrAll(chosen []string, room *classroom.Room) []string {
	if len(chosen) > 0 {
		return chosen
	}
	return room.Names()
}

// printSeatOutput prints what a program printed at a seat, and how it failed. Each line
// begins with the seat's name.
func printSeatOutput(w io.Writer, did classroom.Did) {
	for line := range strings.Lines(did.Output) {
		_, _ = fmt.Fprintf(w, "%s │ %s\n", did.Seat, strings.TrimRight(line, "\n"))
	}
	if did.Err != nil {
		_, _ = fmt.Fprintf(w, "%s │ failed: %v\n", did.Seat, did.Err)
	}
}

func newClassroomShell() *cobra.Command {
	return &cobra.Command{
		Use:               "shell SEAT",
		Short:             "Open a shell at a seat, as its learner has it",
		Example:           "  lab classroom shell seat-07",
		Args:              clikit.RequireArguments(1, 1),
		ValidArgsFunction: completeSeats,
		RunE: func(cmd *cobra.Command, args []string) error {
			room, err := classroom.Open()
			if err != nil {
				return err
			}
			shell, err := room.Shell(cmd.Context(), args[0])
			if err != nil {
				return clikit.Usage(err)
			}
			shell.Stdin, shell.Stdout, shell.Stderr = os.Stdin, os.Stdout, os.Stderr
			shell.Cancel = func() error { return nil } // Ctrl-C is the shell's.
			err = shell.Run()
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				return nil // The exit code of the shell's last command is no error of ours.
			}
			return err
		},
	}
}

func newClassroomDown(o *globalOptions) *cobra.Command {
	var deleting bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Close the door and end every lab of every seat; what was written and done stays",
		Long: `down ends the page, everybody's shells, and every lab. How far learners are, what they
wrote and their passwords stay, and up goes on from there. --delete deletes that, too.`,
		Example: "  lab classroom down\n  lab classroom down --delete",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return closeRoom(cmd.Context(), o, deleting)
		},
	}
	cmd.Flags().BoolVar(&deleting, "delete", false, "also delete the seats, with all that was written there")
	return cmd
}

// closeRoom ends the classroom's server and labs. With deleting it deletes the seats
// too.
func closeRoom(ctx context.Context, o *globalOptions, deleting bool) error {
	room, err := classroom.Enter()
	if err != nil {
		return err
	}
	defer room.Leave()
	return room.Down(ctx, deleting, o.newSteps())
}

// newClassroomServe returns the hidden command `lab classroom serve`.
func newClassroomServe() *cobra.Command {
	return &cobra.Command{
		Use: "serve", Hidden: true, Short: "The classroom's server; up starts it",
		RunE: func(cmd *cobra.Command, _ []string) error {
			room, err := classroom.Open()
			if err != nil {
				return err
			}
			return room.Serve(cmd.Context())
		},
	}
}

func newClassroomPage() *cobra.Command {
	var (
		rooms classroom.Rooms
		from  []string
	)
	cmd := &cobra.Command{
		Use:   "page",
		Short: "Show the seats of other machines' classrooms, or of pods, on one page",
		Long: `page asks the pages of other classrooms how far their seats are, every other second, and
shows them all as one. It stays until it is told to end (Ctrl-C, SIGTERM). A room that does
not answer stays on the page, as it was, with the reason.

It is reached from this machine alone unless --listen says otherwise, and has no password.`,
		Example: `  lab classroom page --from http://10.0.0.11:8400/ --from http://10.0.0.12:8400/ --port 8401
  lab classroom page --from-service seat:8400 --listen 0.0.0.0   # manifests/classroom`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(from) == 0 && rooms.Service == "" {
				return clikit.Usagef("whose seats? want --from URL, or --from-service HOST:PORT")
			}
			for _, text := range from {
				u, err := url.Parse(text)
				if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
					return clikit.Usagef("--from %q: want the URL of a classroom's page, such as http://10.0.0.11:8400/", text)
				}
				rooms.From = append(rooms.From, u)
			}
			if host, port, err := net.SplitHostPort(rooms.Service); rooms.Service != "" && (err != nil || host == "" ||
				port == "") {
				return clikit.Usagef("--from-service %q: want HOST:PORT, such as seat:8400", rooms.Service)
			}
			return rooms.Serve(cmd.Context())
		},
	}
	cmd.Flags().StringSliceVar(&from, "from", nil, "the `URL` of a classroom's page; can be repeated")
	cmd.Flags().StringVar(
		&rooms.Service, "from-service", "",
		"the `HOST:PORT` of pages at each address that the name has, which is asked for anew each time: a headless Service, say",
	)
	cmd.Flags().StringVar(
		&rooms.Listen, "listen", "127.0.0.1",
		"the `ADDRESS` at which the page is reached: 0.0.0.0 is every one of this machine",
	)
	addHostFlag(cmd, &rooms.Hosts)
	cmd.Flags().IntVar(&rooms.Port, "port", 8400, "the page's port")
	return cmd
}

package lessons

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/remedy"
)

// QueueVariable is the environment variable by which a classroom says in which folder its
// seats queue for the suite.
const QueueVariable = "CCMLAB_QUEUE"

// suiteQueue lets a few seats of a classroom run the suite at a time, in the order in
// which they came: each run compiles, and has a lab of its own. A ticket is a file that
// its holder has locked; however the holder ends, the kernel unlocks it.
type suiteQueue struct {
	dir string
	// places is how many run at a time.
	places int
}

// seatsQueue is the queue of this seat's classroom. Elsewhere nobody waits. A run has a place
// for each core: half of its time it waits for the lab.
func seatsQueue() suiteQueue {
	return suiteQueue{dir: os.Getenv(QueueVariable), places: runtime.NumCPU()}
}

// queueInterval is how often a waiting seat looks whether it is its turn.
const queueInterval = 500 * time.Millisecond

// enter returns when it is this ticket's turn. It tells its place in the queue each time
// that changes. leave gives the place free.
func (q suiteQueue) enter(ctx context.Context, tell func(string)) (leave func(), err error) {
	if q.dir == "" {
		return func() {}, nil
	}
	mine, err := q.drawTicket()
	if err != nil {
		return nil, remedy.With(err)
	}
	leave = func() { _, _ = os.Remove(mine.name), mine.file.Close() }
	told := 0
	err = cluster.PollEvery(ctx, queueInterval, "a place to run the suite", func(context.Context) error {
		before, err := q.countBefore(mine.name)
		if err != nil || before < q.places {
			return err
		}
		place := before - q.places + 1
		if place != told {
			tell(fmt.Sprintf("%d are judged at a time: yours is number %d in the queue", q.places, place))
		}
		told = place
		return fmt.Errorf("number %d in the queue", place)
	})
	if err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}

// ticket is a place in the queue. Its holder has locked the file.
type ticket struct {
	name string
	file *os.File
}

// drawTicket makes a file whose name sorts after those of all earlier ones. It gets that
// name when it is locked: one that is not counts as left behind.
func (q suiteQueue) drawTicket() (ticket, error) {
	if err := os.MkdirAll(q.dir, 0o700); err != nil {
		return ticket{}, err
	}
	f, err := os.CreateTemp(q.dir, "new-*")
	if err != nil {
		return ticket{}, err
	}
	name := filepath.Join(q.dir, fmt.Sprintf("ticket-%020d-%d", time.Now().UnixNano(), os.Getpid()))
	if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		_, _ = os.Remove(f.Name()), f.Close()
		return ticket{}, err
	}
	return ticket{name: name, file: f}, nil
}

// countBefore counts the tickets that were drawn earlier and are still held, and removes
// those that nobody holds.
func (q suiteQueue) countBefore(ticket string) (int, error) {
	all, err := filepath.Glob(filepath.Join(q.dir, "ticket-*")) // Sorted.
	count := 0
	for _, other := range all {
		if other >= ticket {
			break
		}
		f, err := os.Open(other)
		if err != nil {
			continue // It is gone just now.
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = os.Remove(other)
		} else {
			count++
		}
		_ = f.Close()
	}
	return count, err
}

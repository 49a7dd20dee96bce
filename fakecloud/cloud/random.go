package cloud

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// random is the cloud's only source of randomness. A seed makes what is drawn repeatable,
// in the order of the calls. The time in an ID is not drawn.
type random struct {
	mu      sync.Mutex
	rand    *rand.Rand
	entropy *ulid.MonotonicEntropy
}

// newRandom draws the same for the same seed and start, unless seed is 0.
func newRandom(seed, round int64) *random {
	var key [32]byte
	if seed == 0 {
		_, _ = crand.Read(key[:]) // Never fails.
	} else {
		binary.LittleEndian.PutUint64(key[:], uint64(seed))
		binary.LittleEndian.PutUint64(key[8:], uint64(round))
	}
	src := rand.NewChaCha8(key)
	return &random{rand: rand.New(src), entropy: ulid.Monotonic(src, 0)}
}

// newID makes a unique ID. IDs sort by creation time.
func (r *random) newID(prefix string, now time.Time) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	u, err := ulid.New(ulid.Timestamp(now), r.entropy)
	if err != nil {
		return "", fmt.Errorf("making an ID: %w", err)
	}
	return prefix + "-" + strings.ToLower(u.String()), nil
}

// newIdentity makes the ID and the serial number of a new resource. Serial numbers are never
// given twice, not even after a restore, and are what clouds have that call things by a number.
func (c *Cloud) newIdentity(ctx context.Context, tx *changeTx, prefix string) (id string, serial int64, err error) {
	if id, err = c.random.newID(prefix, tx.now); err != nil {
		return "", 0, err
	}
	serial, err = tx.NextSerial(ctx)
	return id, serial, err
}

// newMetadata is that of a new resource, whose ID begins with a prefix.
func (c *Cloud) newMetadata(
	ctx context.Context,
	tx *changeTx,
	p Project,
	prefix, name string,
	tags map[string]string,
) (api.Metadata, error) {
	id, serial, err := c.newIdentity(ctx, tx, prefix)
	return api.Metadata{
		ID: id, Serial: serial, Project: p.ID, Name: name, Tags: withDefaults(tags, p.DefaultTags), Version: 1,
		CreatedAt: tx.now, UpdatedAt: tx.now,
	}, err
}

// float draws from [0,1).
func (r *random) float() float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rand.Float64()
}

// letters draws n lower-case letters.
func (r *random) letters(n int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := make([]byte, n)
	for i := range b {
		b[i] = byte('a' + r.rand.IntN(26))
	}
	return string(b)
}

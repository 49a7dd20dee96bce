package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

// eventBatch bounds what is held in memory for one reader.
const eventBatch = 200

// Oldest is the number to read after that starts with the oldest event kept.
const Oldest int64 = -1

// Events gives the project's next events after a number, or everyone's for the zero
// Project. It also gives the number to continue from, which is the same number if there
// are no events. A refusal with code EventsExpired means that the reader has missed
// events.
func (c *Cloud) Events(ctx context.Context, p Project, after int64) ([]Event, int64, error) {
	b, err := c.store.EventsAfter(ctx, p.ID, after, eventBatch)
	if errors.Is(err, store.ErrEventsExpired) {
		return nil, after, refuse(
			EventsExpired,
			"events after %d are not kept (or this cloud's data was replaced): list the resources anew, then follow from the oldest event kept",
			after,
		)
	}
	if err != nil {
		return nil, after, err
	}
	events, err := mapAll(b.Events, eventFrom)
	return events, b.Through, err
}

// LastEvent is the number of the newest event. If there is none, it is one less than
// the number of the first.
func (c *Cloud) LastEvent(ctx context.Context) (int64, error) { return c.store.LastEvent(ctx) }

// MoreEvents gives a channel that is closed when there may be further events. Call it
// before reading them.
func (c *Cloud) MoreEvents() <-chan struct{} { return c.store.Committed() }

// appendEvent writes the event of a change to a resource, which was in state
// from before. It ends the operations that the new state decides. The event of a
// deletion says no state after it, though its body shows the resource as it last
// was.
func appendEvent(ctx context.Context, tx *changeTx, t api.EventType, from string, d description) error {
	if d.kind() == api.ResourceDialectRecord {
		return nil
	}
	to := d.row.State
	if t == api.EventDeleted {
		to = ""
	}
	if t != api.EventCreated && to != from && hasOperations(d.kind()) {
		if err := endDecidedOperations(ctx, tx, d.row.ID, to, d.reason); err != nil {
			return err
		}
	}
	tx.transitions = append(tx.transitions, Transition{Resource: d.kind(), From: from, To: to})
	return tx.AppendEvent(ctx, db.InsertEventParams{
		ProjectID: d.row.ProjectID, Time: tx.now.UnixMilli(), Type: string(t), Resource: d.row.Kind,
		ResourceID: d.row.ID, Name: d.row.Name, FromState: from, ToState: to, Reason: d.reason,
		Body: d.row.Document,
	})
}

func eventFrom(row db.Event) (Event, error) {
	e := Event{Project: row.ProjectID, Event: api.Event{
		Seq: row.Seq, Time: fromMillis(row.Time), Type: api.EventType(row.Type), Resource: Resource(row.Resource),
		ID: row.ResourceID, Name: row.Name, From: row.FromState, To: row.ToState, Reason: row.Reason,
	}}
	body, in := []byte(row.Body), Instance{}
	_, at := e.Payload()
	err := json.Unmarshal(body, &struct {
		Tags *api.Tags `json:"tags"`
	}{&e.Tags})
	switch {
	case err != nil:
	case e.Resource == api.ResourceInstance:
		err = json.Unmarshal(body, &in)
		e.Instance = new(in.ToAPI())
	case at != nil:
		err = json.Unmarshal(body, at)
	case e.Resource != api.ResourceQuota: // Of a quota, all is in the columns.
		err = errors.New("unknown kind of resource")
	}
	if err != nil {
		return Event{}, fmt.Errorf("stored event %d (%s): %w", row.Seq, row.Resource, err)
	}
	return e, nil
}

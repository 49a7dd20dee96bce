package server

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// timedRecorder is a recorder whose writes may have a deadline.
type timedRecorder struct{ *httptest.ResponseRecorder }

func (timedRecorder) SetWriteDeadline(time.Time) error { return nil }

// A reader is told its position once its filter has left out so many events, without waiting for a heartbeat.
func TestPositionsPastFilteredEvents(t *testing.T) {
	w := timedRecorder{httptest.NewRecorder()}
	out := &eventWriter{
		w: w, control: http.NewResponseController(w), filter: eventFilter{project: "p"}, hub: &eventHub{},
		edit: func(m eventMessage) ([]byte, error) { return fmt.Appendf(nil, "message %d\n", m.seq), nil },
	}
	theirs := []eventMessage{{seq: maxUntoldEvents, project: "q"}}
	require.NoError(t, out.sendMessages(theirs, maxUntoldEvents-1))
	assert.Empty(t, w.Body.String())
	require.NoError(t, out.sendMessages(theirs, maxUntoldEvents))
	require.NoError(t, out.sendMessages([]eventMessage{{seq: maxUntoldEvents + 1, project: "p"}}, maxUntoldEvents+1))
	require.NoError(t, out.sendMessages(theirs, 2*maxUntoldEvents))
	assert.Equal(t, "id: 1000\n\nmessage 1001\n", w.Body.String())
}

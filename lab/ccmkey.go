package lab

// The key pair of a CCM that signs its calls instead of showing a token. Its files are in the lab's folder, and the
// cloud has the public key beside the CCM's token.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/conformance/program"
)

const (
	// keyFields is what the names of the key's fields of program.Values begin with.
	keyFields = ".Key"
	// keyUseBound is how long a CCM that was restarted has to make a call with its new key. One whose Nodes and
	// Services are as they should be may call nobody for longer.
	keyUseBound = 30 * time.Second
)

var errKeyRefused = errors.New("the cloud answered 401; the key before stays valid")

// ccmKeys are the key pair of a lab's CCM, and what a rotation needs meanwhile. The order in which these files come
// and go says how far a rotation that was broken off has come.
type ccmKeys struct {
	cloud   cluster.TokenKeys
	project string
	// current is what the CCM uses. next is the one after it, and old, during a rotation, the previous one.
	current, next, old string
}

func (l *Lab) ccmKeys(ctx context.Context) (*ccmKeys, error) {
	cloud, err := l.Cluster.Cloud().Client(cluster.CallerOperator)
	if err != nil {
		return nil, err
	}
	project, err := cloud.Project(ctx)
	if err != nil {
		return nil, err
	}
	file := l.keyFile()
	return &ccmKeys{cloud: cloud, project: project.ID, current: file, next: file + ".next", old: file + ".old"}, nil
}

func (l *Lab) keyFile() string { return l.State.Path("ccm-key.pem") }

// ensure makes the key pair unless it is there, and returns its fingerprint when the cloud knows it.
func (k *ccmKeys) ensure(ctx context.Context, file string) (fingerprint string, err error) {
	return cluster.EnsureTokenKey(ctx, k.cloud, k.project, cluster.CallerCCM, file)
}

// rotate puts a new key pair, which the cloud knows, into the current one's place. An interrupted rotation continues.
func (k *ccmKeys) rotate(ctx context.Context) error {
	if _, err := os.Stat(k.old); errors.Is(err, fs.ErrNotExist) {
		if _, err := k.ensure(ctx, k.next); err != nil {
			return err
		}
		if err := os.Link(k.current, k.old); err != nil {
			return err
		}
	}
	if err := atomicfile.Rename(k.next, k.current); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil // It was renamed before.
}

// forgetOld ends a rotation: the key before is not valid any more.
func (k *ccmKeys) forgetOld(ctx context.Context) error {
	_, fingerprint, err := cluster.PublicKey(k.old)
	if err != nil {
		return err
	}
	err = k.cloud.DeleteTokenKey(ctx, k.project, cluster.CallerCCM, fingerprint)
	if err != nil && !client.HasCode(err, api.NotFound) {
		return err
	}
	return os.Remove(k.old)
}

// RotateCCMKey gives the lab's CCM a new key pair in place of the one that it signs its calls with: a CCM that runs
// is restarted, and the cloud then forgets the old one. done says what was seen of it.
func (l *Lab) RotateCCMKey(ctx context.Context) (done string, err error) {
	used, err := l.OtherCCM()
	if err != nil {
		return "", err
	}
	if used == nil || used.Templates == nil || !(&program.CCM{
		Args: used.Templates.Args, Env: used.Templates.Env, ConfigTemplate: used.Templates.Config,
	}).IsTold(keyFields) {
		return "", fmt.Errorf("the CCM of lab %q signs no calls, so it has no key", l.State.Name)
	}
	keys, err := l.ccmKeys(ctx)
	if err != nil {
		return "", err
	}
	if _, err := keys.ensure(ctx, keys.current); err != nil {
		return "", err
	}
	if err := keys.rotate(ctx); err != nil {
		return "", err
	}
	wanted, err := l.CCMWanted(ctx)
	if err != nil {
		return "", err
	}
	done = "no CCM runs; the next one signs with the new key"
	if wanted {
		if done, err = l.restartWithKey(ctx); err != nil {
			return "", err
		}
	}
	return done, keys.forgetOld(ctx)
}

// restartWithKey restarts the CCM, and waits for the cloud to take a call of it.
func (l *Lab) restartWithKey(ctx context.Context) (seen string, err error) {
	if err := l.Cluster.StopCCM(ctx); err != nil {
		return "", err
	}
	cloud, err := l.Cloud()
	if err != nil {
		return "", err
	}
	began := time.Now()
	if err := l.StartCCM(ctx); err != nil {
		return "", err
	}
	bounded, cancel := context.WithTimeout(ctx, keyUseBound)
	defer cancel()
	err = cluster.Poll(bounded, "a call of the CCM with the new key", func(ctx context.Context) error {
		calls, err := cloud.ListAudit(ctx, client.AuditFilter{Token: cluster.CallerCCM, Since: began}, 1)
		switch {
		case err == nil && len(calls) == 0:
			err = errors.New("none yet")
		case err == nil && calls[0].Status == http.StatusUnauthorized:
			err = errKeyRefused
		}
		return err
	})
	switch {
	case ctx.Err() != nil || errors.Is(err, errKeyRefused):
		return "", err
	case err != nil:
		return fmt.Sprintf("the CCM made no call within %s, so whether it signs with the new key was not seen",
			keyUseBound), nil
	}
	return "the cloud has taken a call that is signed with the new key", nil
}

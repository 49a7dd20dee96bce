package cloud

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

// EnsureProject creates the project, or sets the default tags of the project that has the
// name.
func (c *Cloud) EnsureProject(ctx context.Context, name string, defaultTags map[string]string) (Project, error) {
	if name == "" {
		return Project{}, refuse(InvalidRequest, "a project needs a name").withField("name", "must not be empty")
	}
	if err := checkTags(defaultTags); err != nil {
		return Project{}, err
	}
	var p Project
	err := c.changeAccess(ctx, func(ctx context.Context, tx *changeTx) error {
		row, err := tx.ProjectNamed(ctx, name)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			p, err = c.newProject(ctx, tx, name, defaultTags)
			return err
		case err != nil:
			return err
		}
		if p, err = projectFrom(row); err != nil || maps.Equal(p.DefaultTags, defaultTags) {
			return err
		}
		p.DefaultTags = tagsOrEmpty(defaultTags)
		return saveProject(ctx, tx.Tx, &p, tx.now)
	})
	return p, err
}

// newProject inserts a project with its default network. There is no event about that
// network, as nobody can have been watching.
func (c *Cloud) newProject(ctx context.Context, tx *changeTx, name string, defaultTags api.Tags) (Project, error) {
	now := tx.now
	id, err := c.random.newID("p", now)
	if err != nil {
		return Project{}, err
	}
	p := Project{
		ID: id, Name: name, DefaultTags: tagsOrEmpty(defaultTags), Version: 1, CreatedAt: now, UpdatedAt: now,
	}
	err = tx.InsertProject(ctx, db.InsertProjectParams{
		ID: p.ID, Name: p.Name, DefaultTags: toJSON(p.DefaultTags), Version: p.Version, CreatedAt: now.UnixMilli(),
		UpdatedAt: now.UnixMilli(),
	})
	if err != nil {
		return Project{}, err
	}
	serial, err := tx.NextSerial(ctx)
	if err != nil {
		return Project{}, err
	}
	return p, tx.InsertResource(ctx, describeFully(Network{api.Network{
		Default: true, Cidr: c.cfg.InstanceCIDR.String(), Metadata: api.Metadata{
			ID: defaultNetworkID(p.ID), Serial: serial, Project: p.ID, Name: "default",
			Tags: map[string]string{}, Version: 1, CreatedAt: now, UpdatedAt: now,
		},
	}}).row)
}

// CreateProject gives the new project. An idempotency key belongs to the caller's project.
func (c *Cloud) CreateProject(ctx context.Context, caller Project, spec api.ProjectCreate) (Project, Outcome, error) {
	if err := errors.Join(checkName(spec.Name), checkTags(api.ValueOf(spec.DefaultTags))); err != nil {
		return Project{}, Outcome{}, err
	}
	return createResource(ctx, c.changeAccess, c, caller, func(ctx context.Context, tx *changeTx) (Project, error) {
		if err := checkProjectName(ctx, tx.Tx, spec.Name); err != nil {
			return Project{}, err
		}
		return c.newProject(ctx, tx, spec.Name, api.ValueOf(spec.DefaultTags))
	})
}

func checkProjectName(ctx context.Context, tx *store.Tx, name string) error {
	row, err := tx.ProjectNamed(ctx, name)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return err
	}
	return refuse(NameTaken, "project %s already has the name %q: choose another", row.ID, name).
		withField("name", "is taken")
}

// ProjectByID reads one project.
func (c *Cloud) ProjectByID(ctx context.Context, id string) (Project, error) {
	return readOne(ctx, c, func(tx *store.Tx) (Project, error) { return loadProject(ctx, tx, id) })
}

// ListProjects gives one page, oldest first, and whether more follow. It ignores the
// filter's tags, zone and states.
func (c *Cloud) ListProjects(ctx context.Context, f Filter) (page []Project, more bool, err error) {
	return readPage(ctx, c, f.Limit, projectFrom, func(tx *store.Tx) ([]db.Project, error) {
		return tx.ListProjects(ctx, db.ListProjectsParams{After: f.After, Name: f.Name, Max: int64(f.Limit) + 1})
	})
}

// UpdateProject replaces what is given.
func (c *Cloud) UpdateProject(ctx context.Context, id string, u api.ProjectUpdate) (Project, error) {
	var p Project
	err := c.changeAccess(ctx, func(ctx context.Context, tx *changeTx) (err error) {
		if p, err = loadProject(ctx, tx.Tx, id); err != nil {
			return err
		}
		if err := checkIfMatch(ctx, p.ID, p.Version); err != nil {
			return err
		}
		old := p
		if u.Name != nil && *u.Name != p.Name {
			if err := errors.Join(checkName(*u.Name), checkProjectName(ctx, tx.Tx, *u.Name)); err != nil {
				return err
			}
			p.Name = *u.Name
		}
		if u.DefaultTags != nil {
			if err := checkTags(*u.DefaultTags); err != nil {
				return err
			}
			p.DefaultTags = tagsOrEmpty(*u.DefaultTags)
		}
		if p.Name == old.Name && maps.Equal(p.DefaultTags, old.DefaultTags) {
			return nil
		}
		return saveProject(ctx, tx.Tx, &p, tx.now)
	})
	return p, err
}

// DeleteProject deletes a project that has no resources but its default network. Faults
// that the project made and those about it are lifted. The caller's own project cannot be
// deleted.
func (c *Cloud) DeleteProject(ctx context.Context, caller Project, id string) error {
	return c.changeAccess(ctx, func(ctx context.Context, tx *changeTx) error {
		p, err := loadProject(ctx, tx.Tx, id)
		if err != nil {
			return err
		}
		if err := checkIfMatch(ctx, p.ID, p.Version); err != nil {
			return err
		}
		if p.ID == caller.ID {
			return refuse(
				InUse, "project %q is your token's own: delete it with an admin's token of another project", p.Name,
			)
		}
		if err := checkProjectEmpty(ctx, tx.Tx, p); err != nil {
			return err
		}
		if err := c.liftFaultsOf(ctx, tx, p.ID); err != nil {
			return err
		}
		for _, drop := range []func(context.Context, string) error{
			tx.DeleteProjectResources, tx.RemoveProjectEvents, tx.DeleteProjectTokens,
			tx.DeleteProject, // Takes along what refers to it and to nothing else.
		} {
			if err := drop(ctx, p.ID); err != nil {
				return err
			}
		}
		return nil
	})
}

// checkProjectEmpty refuses to delete a project that owns more than its default network.
func checkProjectEmpty(ctx context.Context, tx *store.Tx, p Project) error {
	rows, err := tx.UsageOf(ctx, p.ID)
	if err != nil {
		return err
	}
	var has []string
	for _, row := range rows {
		what := strings.ReplaceAll(row.Kind, "-", " ")
		switch {
		case row.Kind == string(QuotaNetworks) && row.Used > 1:
			has = append(has, fmt.Sprintf("%d %s beside the default one", row.Used-1, what))
		case row.Kind != string(QuotaNetworks) && row.Used > 0:
			has = append(has, fmt.Sprintf("%d %s", row.Used, what))
		}
	}
	if len(has) == 0 {
		return nil
	}
	return refuse(
		InUse, "project %q still has %s: terminate or delete those first, with a token of that project", p.Name,
		strings.Join(has, ", "),
	)
}

// loadProject reads any project. It is for admins.
func loadProject(ctx context.Context, tx *store.Tx, id string) (Project, error) {
	row, err := tx.GetProject(ctx, id)
	if errors.Is(err, sql.ErrNoRows) {
		return Project{}, refuse(NotFound, "no project %q in this cloud", id)
	}
	if err != nil {
		return Project{}, err
	}
	return projectFrom(row)
}

// saveProject writes what can change of a project as its next version.
func saveProject(ctx context.Context, tx *store.Tx, p *Project, now time.Time) error {
	p.Version++
	p.UpdatedAt = now
	return tx.UpdateProject(ctx, db.UpdateProjectParams{
		ID: p.ID, Name: p.Name, DefaultTags: toJSON(p.DefaultTags), Version: p.Version, UpdatedAt: now.UnixMilli(),
	})
}

func projectFrom(row db.Project) (Project, error) {
	p := Project{
		ID: row.ID, Name: row.Name, Version: row.Version, CreatedAt: fromMillis(row.CreatedAt),
		UpdatedAt: fromMillis(row.UpdatedAt),
	}
	if err := json.Unmarshal([]byte(row.DefaultTags), &p.DefaultTags); err != nil {
		return Project{}, fmt.Errorf("project %s: stored tags: %w", row.ID, err)
	}
	return p, nil
}

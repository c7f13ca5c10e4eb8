-- The tables of a server with schema 3, as expost made them on SQLite before there were migrations.
CREATE TABLE server_acts (
    number INTEGER NOT NULL,
    time FLOAT NOT NULL,
    person VARCHAR(64) NOT NULL,
    act VARCHAR(64) NOT NULL,
    detail TEXT NOT NULL,
    previous VARCHAR(64) NOT NULL,
    hash VARCHAR(64) NOT NULL,
    PRIMARY KEY (number)
);
CREATE TABLE server_attempts (
    reservation VARCHAR(64) NOT NULL,
    request VARCHAR(32) NOT NULL,
    PRIMARY KEY (reservation)
);
CREATE INDEX ix_server_attempts_request ON server_attempts (request);
CREATE TABLE server_dataset_versions (
    name VARCHAR(64) NOT NULL,
    version INTEGER NOT NULL,
    document TEXT NOT NULL,
    PRIMARY KEY (name, version)
);
CREATE TABLE server_datasets (
    name VARCHAR(64) NOT NULL,
    document TEXT NOT NULL,
    created FLOAT NOT NULL,
    retired BOOLEAN NOT NULL,
    PRIMARY KEY (name)
);
CREATE TABLE server_facts (
    name VARCHAR(64) NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (name)
);
CREATE TABLE server_failures (
    number INTEGER NOT NULL,
    place VARCHAR(200) NOT NULL,
    time FLOAT NOT NULL,
    PRIMARY KEY (number)
);
CREATE INDEX server_failures_place ON server_failures (place, time);
CREATE TABLE server_links (
    hash VARCHAR(64) NOT NULL,
    expires FLOAT NOT NULL,
    used BOOLEAN NOT NULL,
    PRIMARY KEY (hash)
);
CREATE TABLE server_models (
    request VARCHAR(32) NOT NULL,
    content BLOB NOT NULL,
    PRIMARY KEY (request)
);
CREATE TABLE server_people (
    name VARCHAR(64) NOT NULL,
    role VARCHAR(16) NOT NULL,
    created FLOAT NOT NULL,
    disabled BOOLEAN NOT NULL,
    PRIMARY KEY (name)
);
CREATE TABLE server_requests (
    id VARCHAR(32) NOT NULL,
    person VARCHAR(64) NOT NULL,
    dataset VARCHAR(64) NOT NULL,
    version INTEGER NOT NULL,
    kind VARCHAR(16) NOT NULL,
    "key" VARCHAR(128) NOT NULL,
    digest VARCHAR(64) NOT NULL,
    question TEXT NOT NULL,
    price TEXT NOT NULL,
    memo TEXT NOT NULL,
    secret VARCHAR(64) NOT NULL,
    state VARCHAR(16) NOT NULL,
    created FLOAT NOT NULL,
    started FLOAT,
    finished FLOAT,
    published FLOAT,
    worker VARCHAR(64),
    lease FLOAT NOT NULL,
    home VARCHAR(64),
    tries INTEGER NOT NULL,
    deaths INTEGER NOT NULL,
    outcome TEXT,
    result TEXT,
    charge TEXT,
    refusal TEXT,
    failure VARCHAR(200),
    reserved VARCHAR(40) NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT server_requests_key UNIQUE (person, "key")
);
CREATE INDEX server_requests_created ON server_requests (created);
CREATE INDEX server_requests_person ON server_requests (person, created);
CREATE INDEX server_requests_state ON server_requests (state, lease);
CREATE TABLE server_sessions (
    hash VARCHAR(64) NOT NULL,
    person VARCHAR(64) NOT NULL,
    token VARCHAR(32),
    created FLOAT NOT NULL,
    expires FLOAT NOT NULL,
    PRIMARY KEY (hash)
);
CREATE INDEX ix_server_sessions_person ON server_sessions (person);
CREATE TABLE server_tokens (
    id VARCHAR(32) NOT NULL,
    person VARCHAR(64) NOT NULL,
    made_by VARCHAR(64) NOT NULL,
    salt BLOB NOT NULL,
    hash BLOB NOT NULL,
    note VARCHAR(200) NOT NULL,
    created FLOAT NOT NULL,
    expires FLOAT NOT NULL,
    revoked BOOLEAN NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX ix_server_tokens_person ON server_tokens (person);
INSERT INTO server_facts VALUES ('schema', '3');
INSERT INTO server_people VALUES ('olga', 'owner', 1767225600.0, false);

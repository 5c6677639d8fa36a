//! `sweep.sqlite`: the results of a sweep so far. Each transaction adds some rows.
//!
//! The store is a SQLite database in write-ahead mode. Each transaction is checkpointed into the database file before
//! the next begins, so that the log holds only the last one. If the process is killed, all committed rows stay.
//!
//! SQLite trusts the bytes of its pages. Therefore each row has a checksum, and the store has a checksum of all rows.
//! Opening the store detects changed, lost and duplicate rows. The facts beside the rows identify the question, the
//! space and the part.

use super::facts::SweepFacts;
use super::row::SweptRow;
use crate::store::files::{self, Unwritable, WriteError};
use crate::store::seal::{BASIS, fnv1a};
use rusqlite::{Connection, ErrorCode, OpenFlags, params};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The store's file name.
pub const STORE: &str = "sweep.sqlite";
/// The files that SQLite keeps beside an open store.
pub const BESIDE: [&str; 2] = ["sweep.sqlite-wal", "sweep.sqlite-shm"];

/// The version of the store's format that this build writes and reads.
pub const FORMAT: i64 = 4;
/// The `application_id` of SQLite that marks the file as a store of coplace: "copl".
const APPLICATION: i64 = 0x636f_706c;

/// Limit on the combinations of a sweep: eight billion, whose marks take 1 GiB of memory.
pub const MOST_COMBINATIONS: u64 = 1 << 33;

/// The statements that make the tables, in the order of the tables.
const TABLES: [&str; 3] = [
    "CREATE TABLE facts (one INTEGER PRIMARY KEY CHECK (one = 0), text TEXT NOT NULL, checksum INTEGER NOT NULL) \
    STRICT",
    "CREATE TABLE tally (one INTEGER PRIMARY KEY CHECK (one = 0), rows INTEGER NOT NULL, mixed INTEGER NOT NULL) \
    STRICT",
    "CREATE TABLE design (number INTEGER PRIMARY KEY, row BLOB NOT NULL, checksum INTEGER NOT NULL) STRICT",
];

/// An error of a store of a sweep.
#[derive(Debug, thiserror::Error)]
pub enum SweepStoreError {
    /// The disk is full or broken, or the file cannot be written.
    #[error("{}: cannot be written: {why}; nothing that was committed is lost: make room and go on with --resume", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// Message of SQLite.
        why: String,
        /// The same fault as an error of writing.
        error: WriteError,
    },
    /// The file cannot be opened.
    #[error("{}: cannot be opened: {why}; give the directory of a sweep", file.display())]
    Open {
        /// The file.
        file: PathBuf,
        /// Message of SQLite.
        why: String,
    },
    /// The file is truncated or damaged, or coplace did not write it.
    #[error("{}: damaged, or no store of coplace ({why}); remove it and sweep again, or give another directory", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// The evidence of the damage.
        why: String,
    },
    /// Another version of coplace wrote the file.
    #[error(
        "{}: is of version {found}, this is version {expected} of coplace; go on with that version, or remove it and \
        sweep again",
        file.display()
    )]
    Version {
        /// The file.
        file: PathBuf,
        /// The version that wrote the file.
        found: String,
        /// The version that reads the file.
        expected: String,
    },
    /// The store belongs to another question or part.
    #[error("{}: holds another sweep: {difference}; give another directory, or remove it", file.display())]
    Other {
        /// The file.
        file: PathBuf,
        /// The difference.
        difference: String,
    },
    /// Another process uses the store.
    #[error("{}: another process writes into it; wait for its end, or give another directory", file.display())]
    Busy {
        /// The file.
        file: PathBuf,
    },
    /// A row cannot be stored or exported.
    #[error("design {number}: cannot be kept: {why}")]
    Row {
        /// The number of the combination.
        number: u64,
        /// The reason.
        why: String,
    },
    /// An export cannot be written.
    #[error(transparent)]
    Export(#[from] WriteError),
}

impl Unwritable for SweepStoreError {
    fn write_error(&self) -> Option<&WriteError> {
        match self {
            Self::Write { error, .. } | Self::Export(error) => Some(error),
            _ => None,
        }
    }
}

/// The set of combinations in a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PresentCombinations {
    bits: Vec<u64>,
    count: u64,
}

impl PresentCombinations {
    fn new(combinations: u64) -> Self {
        Self { bits: vec![0; combinations.div_ceil(64) as usize], count: 0 }
    }

    /// True if the store has the combination.
    #[must_use]
    pub fn contains_combination(&self, number: u64) -> bool {
        self.bits.get((number / 64) as usize).is_some_and(|bits| bits >> (number % 64) & 1 == 1)
    }

    /// Returns the number of combinations in the store.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Adds a combination. Returns `false` if it was there already or lies outside the sweep.
    fn insert_combination(&mut self, number: u64) -> bool {
        let Some(bits) = self.bits.get_mut((number / 64) as usize) else { return false };
        let new = *bits >> (number % 64) & 1 == 0;
        *bits |= 1 << (number % 64);
        self.count += u64::from(new);
        new
    }
}

/// The number of rows, and the exclusive or of their checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct ChecksumTally {
    rows: u64,
    mixed: u64,
}

impl ChecksumTally {
    fn add_checksum(&mut self, checksum: u64) {
        self.rows += 1;
        self.mixed ^= checksum;
    }
}

/// Returns the checksum of a row's number and bytes.
fn row_checksum(number: u64, bytes: &[u8]) -> u64 {
    fnv1a(fnv1a(BASIS, &number.to_le_bytes()), bytes)
}

/// An open store of a sweep. Unless the directory is read-only, this process uses it exclusively.
#[derive(Debug)]
pub struct SweepStore {
    file: PathBuf,
    connection: Connection,
    facts: SweepFacts,
    present: PresentCombinations,
    tally: ChecksumTally,
}

/// Fails unless a database is a sound store of this format, with the tables of a sweep alone.
fn check_contents(connection: &Connection, file: &Path) -> Result<(), SweepStoreError> {
    let damaged = |why: String| SweepStoreError::Damaged { file: file.to_owned(), why };
    let number = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let (application, format) = (
        number("application_id").map_err(|why| read_error(file, &why))?,
        number("user_version").map_err(|why| read_error(file, &why))?,
    );
    if application != APPLICATION {
        return Err(damaged("it is another program's database".into()));
    }
    if format != FORMAT {
        return Err(SweepStoreError::Version {
            file: file.to_owned(),
            found: format!("store {format}"),
            expected: format!("store {FORMAT}"),
        });
    }
    // A view, a check or a computed column of a foreign file might never end.
    if !has_own_tables(connection).map_err(|why| read_error(file, &why))? {
        return Err(damaged("its tables are not those of a sweep".into()));
    }
    let sound: String = connection
        .query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))
        .map_err(|why| read_error(file, &why))?;
    if sound != "ok" {
        return Err(damaged(sound));
    }
    Ok(())
}

/// Reads the question of a store. Fails if it is damaged, or of another version of the program.
fn read_facts(connection: &Connection, file: &Path) -> Result<SweepFacts, SweepStoreError> {
    let damaged = |why: String| SweepStoreError::Damaged { file: file.to_owned(), why };
    let (text, sum): (String, i64) = connection
        .query_row("SELECT text, checksum FROM facts", [], |row| Ok((row.get(0)?, row.get(1)?)))
        .map_err(|why| read_error(file, &why))?;
    if sum as u64 != row_checksum(0, text.as_bytes()) {
        return Err(damaged("the checksum of what it is of does not match".into()));
    }
    let found: serde_json::Value = serde_json::from_str(&text).map_err(|why| damaged(why.to_string()))?;
    let expected = env!("CARGO_PKG_VERSION");
    match found.get("coplace").and_then(serde_json::Value::as_str) {
        Some(version) if version == expected => {}
        version => {
            let found = version.unwrap_or("unknown").to_owned();
            return Err(SweepStoreError::Version { file: file.to_owned(), found, expected: expected.into() });
        }
    }
    let facts: SweepFacts = serde_json::from_value(found).map_err(|why| damaged(why.to_string()))?;
    let product = facts.dimensions.iter().map(|swept| swept.values.len() as u64).try_fold(1, u64::checked_mul);
    if product != Some(facts.combinations) || facts.combinations > MOST_COMBINATIONS {
        let why = format!("it counts {} combinations, which its dimensions do not have", facts.combinations);
        return Err(damaged(why));
    }
    Ok(facts)
}

impl SweepStore {
    /// Creates a new store in a directory. The file is built under a temporary name and renamed when it is complete.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn create_in(directory: &Path, facts: &SweepFacts) -> Result<Self, SweepStoreError> {
        let file = directory.join(STORE);
        let staged = files::temporary_path(&file);
        let text =
            serde_json::to_string(facts).map_err(|why| SweepStoreError::Row { number: 0, why: why.to_string() })?;
        let made = create_database(&staged, &text).map_err(|why| write_error_of(&file, &why)).and_then(|()| {
            let renamed = std::fs::rename(&staged, &file);
            renamed.map_err(|why| SweepStoreError::Export(WriteError { file: file.clone(), why }))
        });
        if made.is_err() {
            // The first error is the one to report.
            drop(std::fs::remove_file(&staged));
        }
        made?;
        Self::open_in(directory)
    }

    /// Opens the store in a directory and verifies the checksum of every row.
    ///
    /// # Errors
    /// A store that is missing, truncated, damaged, of another version, or in use by another process.
    pub fn open_in(directory: &Path) -> Result<Self, SweepStoreError> {
        let mut store = Self::open_by(directory, connect_exclusively)?;
        store.checkpoint_log()?;
        Ok(store)
    }

    /// Opens the store in a directory for reading, as [`Self::open_in`] does. If nothing is left in the log, the
    /// directory may be read-only.
    ///
    /// # Errors
    /// As [`Self::open_in`].
    pub fn read_in(directory: &Path) -> Result<Self, SweepStoreError> {
        let log = std::fs::metadata(directory.join(BESIDE[0])).ok().filter(std::fs::Metadata::is_file);
        let log = log.map_or(0, |found| found.len());
        match Self::open_in(directory) {
            Err(SweepStoreError::Write { .. } | SweepStoreError::Open { .. }) if log == 0 => {
                Self::open_by(directory, connect_unchanged)
            }
            opened => opened,
        }
    }

    fn open_by(
        directory: &Path,
        connect: impl Fn(&Path) -> Result<Connection, SweepStoreError>,
    ) -> Result<Self, SweepStoreError> {
        let file = directory.join(STORE);
        if is_truncated(&file) {
            return Err(SweepStoreError::Damaged { file, why: "its end is cut off within a page".into() });
        }
        let connection = connect(&file)?;
        check_contents(&connection, &file)?;
        let facts = read_facts(&connection, &file)?;
        let present = PresentCombinations::new(facts.combinations);
        let mut store = Self { file, connection, facts, present, tally: ChecksumTally::default() };
        store.verify_rows()?;
        Ok(store)
    }

    /// Opens the store in a directory if it belongs to the question and part of `asked`.
    ///
    /// # Errors
    /// As [`Self::open_in`]; also a store of another question or part.
    pub fn open_for(directory: &Path, asked: &SweepFacts) -> Result<Self, SweepStoreError> {
        let store = Self::open_in(directory)?;
        match store.facts.difference_from(asked) {
            Some(difference) => Err(SweepStoreError::Other { file: store.file, difference }),
            None => Ok(store),
        }
    }

    /// Verifies the checksum of every row, and that of all rows together.
    fn verify_rows(&mut self) -> Result<(), SweepStoreError> {
        let damaged = |why: String| SweepStoreError::Damaged { file: self.file.clone(), why };
        let (rows, mixed): (i64, i64) = self
            .connection
            .query_row("SELECT rows, mixed FROM tally", [], |row| Ok((row.get(0)?, row.get(1)?)))
            .map_err(|why| read_error(&self.file, &why))?;
        let mut tally = ChecksumTally::default();
        let mut statement = self
            .connection
            .prepare("SELECT number, row, checksum FROM design ORDER BY number")
            .map_err(|why| read_error(&self.file, &why))?;
        let mut cursor = statement.query([]).map_err(|why| read_error(&self.file, &why))?;
        while let Some(row) = cursor.next().map_err(|why| read_error(&self.file, &why))? {
            let of = |why: rusqlite::Error| read_error(&self.file, &why);
            let number = row.get::<_, i64>(0).map_err(of)? as u64;
            let bytes = row.get_ref(1).map_err(of)?.as_blob().map_err(|why| damaged(why.to_string()))?;
            let sum = row.get::<_, i64>(2).map_err(of)? as u64;
            if sum != row_checksum(number, bytes) {
                return Err(damaged(format!("the checksum of design {number} does not match")));
            }
            if !self.facts.shard().contains(number) || !self.present.insert_combination(number) {
                return Err(damaged(format!("design {number} is none of its part")));
            }
            tally.add_checksum(sum);
        }
        drop(cursor);
        drop(statement);
        if tally != (ChecksumTally { rows: rows as u64, mixed: mixed as u64 }) {
            return Err(damaged(format!("it has {} designs where {rows} were kept", tally.rows)));
        }
        self.tally = tally;
        Ok(())
    }

    /// Returns the question, the space and the part of the store.
    #[must_use]
    pub fn facts(&self) -> &SweepFacts {
        &self.facts
    }

    /// Returns the path of the database file.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns the combinations in the store.
    #[must_use]
    pub fn present(&self) -> &PresentCombinations {
        &self.present
    }

    /// True if the store has all combinations of its part.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.present.count == self.facts.size()
    }

    /// Stores rows in one transaction. Rows that are there already stay.
    ///
    /// # Errors
    /// A full or broken disk. None of these rows is stored then.
    pub fn keep_rows(&mut self, rows: &[SweptRow]) -> Result<(), SweepStoreError> {
        let (mut tally, mut present) = (self.tally, Vec::with_capacity(rows.len()));
        let mut encoded = Vec::with_capacity(rows.len());
        for row in rows.iter().filter(|row| !self.present.contains_combination(row.number)) {
            let bytes = postcard::to_allocvec(row)
                .map_err(|why| SweepStoreError::Row { number: row.number, why: why.to_string() })?;
            let sum = row_checksum(row.number, &bytes);
            tally.add_checksum(sum);
            present.push(row.number);
            encoded.push((row.number as i64, bytes, sum as i64));
        }
        let kept = (|| {
            let transaction = self.connection.transaction()?;
            {
                let mut insert = transaction.prepare("INSERT INTO design VALUES (?1, ?2, ?3)")?;
                for (number, bytes, sum) in &encoded {
                    insert.execute(params![number, bytes, sum])?;
                }
                let sums = params![tally.rows as i64, tally.mixed as i64];
                transaction.execute("UPDATE tally SET rows = ?1, mixed = ?2", sums)?;
            }
            transaction.commit()
        })();
        kept.map_err(|why| write_error_of(&self.file, &why))?;
        self.tally = tally;
        for number in present {
            self.present.insert_combination(number);
        }
        self.checkpoint_log()
    }

    /// Checkpoints the log into the database file, so that the log never holds more than one transaction.
    fn checkpoint_log(&mut self) -> Result<(), SweepStoreError> {
        let carried = self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0));
        carried.map(drop).map_err(|why| write_error_of(&self.file, &why))
    }

    /// Calls `take` for every row, in the order of the numbers.
    ///
    /// # Errors
    /// A row that cannot be read, or an error of `take`.
    pub fn for_each_row<E: From<SweepStoreError>>(
        &self,
        mut take: impl FnMut(SweptRow) -> Result<(), E>,
    ) -> Result<(), E> {
        let of = |why: rusqlite::Error| E::from(read_error(&self.file, &why));
        let mut statement =
            self.connection.prepare("SELECT number, row, checksum FROM design ORDER BY number").map_err(of)?;
        let mut cursor = statement.query([]).map_err(of)?;
        while let Some(row) = cursor.next().map_err(of)? {
            let number = row.get::<_, i64>(0).map_err(of)? as u64;
            let damaged = |why: String| E::from(SweepStoreError::Damaged { file: self.file.clone(), why });
            let bytes = row.get_ref(1).map_err(of)?.as_blob().map_err(|why| damaged(why.to_string()))?;
            if row.get::<_, i64>(2).map_err(of)? as u64 != row_checksum(number, bytes) {
                return Err(damaged(format!("the checksum of design {number} does not match")));
            }
            take(postcard::from_bytes(bytes).map_err(|why| damaged(format!("design {number}: {why}")))?)?;
        }
        Ok(())
    }
}

/// Creates a store without rows. It needs no journal, because there is nothing to lose yet.
fn create_database(file: &Path, facts: &str) -> rusqlite::Result<()> {
    let connection = Connection::open(file)?;
    connection.query_row("PRAGMA journal_mode = OFF", [], |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "application_id", APPLICATION)?;
    connection.pragma_update(None, "user_version", FORMAT)?;
    connection
        .execute_batch(&format!("BEGIN IMMEDIATE; {}; INSERT INTO tally VALUES (0, 0, 0);", TABLES.join("; ")))?;
    let sum = row_checksum(0, facts.as_bytes()) as i64;
    connection.execute("INSERT INTO facts VALUES (0, ?1, ?2)", params![facts, sum])?;
    connection.execute_batch("COMMIT")?;
    connection.close().map_err(|(_, why)| why)
}

/// True if a database has the tables of a sweep and nothing else.
fn has_own_tables(connection: &Connection) -> rusqlite::Result<bool> {
    let mut statement = connection.prepare("SELECT sql FROM sqlite_schema LIMIT 4")?;
    let made = statement.query_map([], |row| row.get::<_, Option<String>>(0))?.collect::<Result<Vec<_>, _>>()?;
    Ok(made.iter().map(Option::as_deref).eq(TABLES.map(Some)))
}

/// True if a database ends within a page. SQLite would silently fill such a page with zeros. If a log lies beside the
/// file, the page may be in the log, and the result is false.
fn is_truncated(file: &Path) -> bool {
    let journal = std::fs::metadata(file.with_file_name(BESIDE[0])).map_or(0, |found| found.len());
    let mut header = [0; 18];
    let read =
        std::fs::File::open(file).and_then(|mut file| file.read_exact(&mut header).and_then(|()| file.metadata()));
    // Bytes 16 and 17 hold the page size, where 1 means 65,536 (SQLite, database file format, 1.3.2). A shorter file is
    // no database.
    let page = u64::from(u16::from_be_bytes([header[16], header[17]]));
    let page = if page == 1 { 1 << 16 } else { page };
    journal == 0 && page > 0 && read.is_ok_and(|found| !found.len().is_multiple_of(page))
}

/// Opens a database for this process alone.
fn connect_exclusively(file: &Path) -> Result<Connection, SweepStoreError> {
    let open = |why: &rusqlite::Error| SweepStoreError::Open { file: file.into(), why: why.to_string() };
    let connection =
        Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)
            .map_err(|why| open(&why))?;
    let set = (|| {
        // The lock is exclusive before the log is first used. SQLite then needs no shared memory, and works on network
        // file systems.
        connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
        connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "wal_autocheckpoint", 0)?;
        // A cache of 16 MiB, whatever the size of the sweep.
        connection.pragma_update(None, "cache_size", -16_384)
    })();
    set.map(|()| connection).map_err(|why| read_error(file, &why))
}

/// Opens a database that no process changes, without a lock.
fn connect_unchanged(file: &Path) -> Result<Connection, SweepStoreError> {
    let open = |why: String| SweepStoreError::Open { file: file.into(), why };
    let absolute = std::path::absolute(file).map_err(|why| open(why.to_string()))?;
    let path = absolute.to_str().ok_or_else(|| open("its path is not UTF-8".to_owned()))?;
    // Escapes the characters that would end a path in a URI (SQLite, Uniform Resource Identifiers, 3.1).
    let path = path.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    Connection::open_with_flags(format!("file:{path}?immutable=1"), flags).map_err(|why| open(why.to_string()))
}

/// Translates an error of SQLite while reading.
fn read_error(file: &Path, why: &rusqlite::Error) -> SweepStoreError {
    match why.sqlite_error_code() {
        Some(
            ErrorCode::DiskFull
            | ErrorCode::SystemIoFailure
            | ErrorCode::ReadOnly
            | ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked,
        ) => write_error_of(file, why),
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            SweepStoreError::Open { file: file.into(), why: why.to_string() }
        }
        _ => SweepStoreError::Damaged { file: file.into(), why: why.to_string() },
    }
}

/// Translates an error of SQLite while writing.
fn write_error_of(file: &Path, why: &rusqlite::Error) -> SweepStoreError {
    let write = |kind: io::ErrorKind| {
        let why = why.to_string();
        let error = WriteError { file: file.into(), why: io::Error::new(kind, why.clone()) };
        SweepStoreError::Write { file: file.into(), why, error }
    };
    match why.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => SweepStoreError::Busy { file: file.into() },
        Some(ErrorCode::DiskFull) => write(io::ErrorKind::StorageFull),
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
            write(io::ErrorKind::PermissionDenied)
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            SweepStoreError::Damaged { file: file.into(), why: why.to_string() }
        }
        _ => write(io::ErrorKind::Other),
    }
}

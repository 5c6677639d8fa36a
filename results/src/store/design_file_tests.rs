#![allow(clippy::unwrap_used)]
use super::*;
use crate::store::design::{DesignDimensions, DesignStatus};
use proptest::prelude::*;

fn row(index: i64) -> DesignRow {
    let dimensions = DesignDimensions {
        tensor_cores: 8,
        vector_cores: 2,
        arrays_per_core: 1,
        vector_lanes: 128,
        array_width: 128,
        array_depth: 128,
        global_buffer_mib: f64::from(1 << (index % 7)),
        hbm_gib: 32.0,
        area_mm2: 100.0 + index as f64 / 3.0,
    };
    let mut row = DesignRow::new_undecided(index, dimensions);
    row.outcome = DesignStatus::ALL[index as usize % DesignStatus::ALL.len()];
    if row.outcome == DesignStatus::Evaluated {
        row.throughput_sequences_per_s = Some(index as f64 * 0.1);
        row.stages = Some(index % 9);
        row.memory_policy = Some(format!("recompute attention in stage {index} – µ"));
    } else {
        row.reason = Some("stage 0 of 8 lacks 12 bytes".into());
    }
    row
}

/// Reads a store whose record counts `DESIGNS` designs.
fn read_designs(path: &Path) -> Result<Vec<DesignRow>, StoreError> {
    super::read_designs(path, DESIGNS)
}

const DESIGNS: u64 = 70_000;

fn written(rows: &[DesignRow]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("designs.parquet");
    std::fs::write(&path, to_bytes(&path, rows.iter().cloned()).unwrap()).unwrap();
    (dir, path)
}

#[test]
fn rows_come_back_as_they_were() {
    for count in [0, 1, 7, 1000] {
        let rows: Vec<DesignRow> = (0..count).map(row).collect();
        let (_dir, path) = written(&rows);
        assert_eq!(read_designs(&path).unwrap(), rows);
    }
}

#[test]
fn more_than_one_row_group_keeps_the_order() {
    let rows: Vec<DesignRow> = (0..ROW_GROUP as i64 + 10).map(row).collect();
    let (_dir, path) = written(&rows);
    assert!(read_designs(&path).unwrap() == rows);
}

#[test]
fn more_rows_than_the_record_counts_are_refused_before_they_are_decoded() {
    let rows: Vec<DesignRow> = (0..25).map(row).collect();
    let (_dir, path) = written(&rows);
    assert_eq!(super::read_designs(&path, 25).unwrap().len(), 25);
    let error = super::read_designs(&path, 24).unwrap_err().to_string();
    assert!(error.starts_with(&path.display().to_string()), "{error}");
    assert!(error.contains("(it has 25 rows, the record beside it counts 24 designs"), "{error}");
}

/// A text is stored once and read for every row, so that a small file may fill the memory.
#[test]
fn texts_that_rows_share_count_for_each_row() {
    let long = "x".repeat(1 << 20);
    let (_dir, path) = written(&[0, 1].map(|index| DesignRow { reason: Some(long.clone()), ..row(index) }));
    assert!(std::fs::metadata(&path).unwrap().len() < 1 << 18);
    let read = |mut left: usize| {
        let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
        let mut columns = open_columns(&path, reader.get_row_group(0).unwrap().as_ref()).unwrap();
        let column = columns.iter_mut().find(|column| column.name == "reason").unwrap();
        column.read_cells(2, &mut left).map(|_| left)
    };
    assert_eq!(read((1 << 21) + 7), Ok(7));
    assert!(read((1 << 21) - 1).unwrap_err().contains("it has texts, more than 2 GiB of memory hold"));
}

#[test]
fn equal_rows_give_equal_bytes() {
    let rows: Vec<DesignRow> = (0..500).map(row).collect();
    let (_a, first) = written(&rows);
    let (_b, second) = written(&rows);
    assert_eq!(std::fs::read(first).unwrap(), std::fs::read(second).unwrap());
}

#[test]
fn a_value_that_is_no_number_is_refused() {
    let bad = DesignRow { mfu: Some(f64::NAN), ..row(3) };
    let error = to_bytes(Path::new("designs.parquet"), [row(1), bad]).unwrap_err();
    assert_eq!(error.to_string(), "design 3: mfu = NaN is not a finite number and cannot be stored; leave it out");
}

#[test]
fn what_is_no_store_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("designs.parquet");
    let missing = read_designs(&path).unwrap_err().to_string();
    assert!(missing.contains("designs.parquet: cannot be opened"), "{missing}");
    std::fs::write(&path, "id,area\n1,2\n").unwrap();
    let text = read_designs(&path).unwrap_err().to_string();
    assert!(text.contains("damaged, or no store of coplace (it has no checksum)"), "{text}");
    std::fs::write(&path, "").unwrap();
    assert!(
        read_designs(&path).unwrap_err().to_string().contains("damaged, or no store of coplace (it has no checksum)")
    );
}

/// Writes a Parquet file with one INT64 column `index` and the given format key.
fn foreign(path: &Path, format: Option<&str>) {
    let column =
        Type::primitive_type_builder("index", PhysicalType::INT64).with_repetition(Repetition::REQUIRED).build();
    let schema = Type::group_type_builder("x").with_fields(vec![Arc::new(column.unwrap())]).build().unwrap();
    let mut keys = vec![KeyValue::new(CHECKSUM_KEY.into(), seal::PLACEHOLDER.to_owned())];
    keys.extend(format.map(|f| KeyValue::new(FORMAT_KEY.into(), f.to_owned())));
    let properties = WriterProperties::builder().set_key_value_metadata(Some(keys)).build();
    let mut writer = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(properties)).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut open = group.next_column().unwrap().unwrap();
    write_column(open.untyped(), vec![StoreCell::Int(1)], true).unwrap();
    open.close().unwrap();
    group.close().unwrap();
    let mut bytes = writer.into_inner().unwrap();
    seal::seal_file(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_foreign_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("other.parquet");
    foreign(&path, None);
    assert!(read_designs(&path).unwrap_err().to_string().contains("`coplace.format` is missing, this version"));
    foreign(&path, Some("99"));
    assert!(read_designs(&path).unwrap_err().to_string().contains("`coplace.format` is 99, this version"));
    foreign(&path, Some(FORMAT));
    let error = read_designs(&path).unwrap_err().to_string();
    assert!(error.contains("column `tensor_cores` is missing, expected INT64"), "{error}");
}

#[test]
fn a_reader_that_panics_is_an_error_with_its_words() {
    let panics = |empty: &[u8]| super::catch_panic(|| empty[empty.len()]);
    let why = panics(&[]).unwrap_err();
    assert!(why.starts_with("its reader stopped: index out of bounds"), "{why}");
    assert_eq!(super::catch_panic(|| 7), Ok(7));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// A damaged store with a new seal is read or refused by name, without a panic.
    #[test]
    fn damage_under_a_new_seal_is_no_panic(flips in prop::collection::vec((0.0_f64..1.0, 1_u8..), 1..6)) {
        let rows: Vec<DesignRow> = (0..40).map(row).collect();
        let (_dir, path) = written(&rows);
        let mut bytes = std::fs::read(&path).unwrap();
        for (at, byte) in flips {
            let at = (at * bytes.len() as f64) as usize;
            bytes[at] ^= byte;
        }
        seal::seal_file(&mut bytes);
        std::fs::write(&path, &bytes).unwrap();
        if let Err(error) = read_designs(&path) {
            prop_assert!(error.to_string().starts_with(&path.display().to_string()), "{}", error);
        }
    }

    /// A damaged store is an error. It never panics or gives other rows.
    #[test]
    fn damage_is_an_error(cut in 0.0_f64..1.0, flips in prop::collection::vec((0.0_f64..1.0, 1_u8..), 0..4), truncate: bool) {
        let rows: Vec<DesignRow> = (0..40).map(row).collect();
        let (_dir, path) = written(&rows);
        let whole = std::fs::read(&path).unwrap();
        let mut bytes = whole.clone();
        for (at, byte) in flips {
            let at = (at * bytes.len() as f64) as usize;
            bytes[at] ^= byte;
        }
        if truncate {
            bytes.truncate((cut * bytes.len() as f64) as usize);
        }
        std::fs::write(&path, &bytes).unwrap();
        match read_designs(&path) {
            Ok(read) => prop_assert!(bytes == whole && read == rows),
            Err(error) => {
                prop_assert!(bytes != whole);
                prop_assert!(error.to_string().contains("damaged, or no store of coplace"), "{}", error);
            }
        }
    }
}

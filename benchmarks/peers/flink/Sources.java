import java.util.Map;
import org.apache.flink.api.connector.source.Source;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.connector.file.src.FileSourceSplit;
import org.apache.flink.core.fs.Path;
import org.apache.flink.formats.parquet.ParquetColumnarRowInputFormat;
import org.apache.flink.table.data.RowData;
import org.apache.hadoop.conf.Configuration;

/** Where rows come from: the Parquet files of folder `source`, or without one `rows` of them made out of nothing. */
final class Sources {
    private static final int BATCH = 2048;

    private Sources() {}

    static Source<RowData, ?, ?> of(Map<String, String> job, Columns columns) {
        if (!job.containsKey("source")) {
            return new DataGeneratorSource<>(columns::make, Long.parseLong(job.get("rows")), columns.rows());
        }
        ParquetColumnarRowInputFormat<FileSourceSplit> files =
                new ParquetColumnarRowInputFormat<>(
                        new Configuration(), columns.type, columns.rows(), BATCH, true, true);
        return FileSource.forBulkFileFormat(files, new Path(job.get("source"))).build();
    }
}

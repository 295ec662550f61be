import java.io.Serializable;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.data.TimestampData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.logical.BigIntType;
import org.apache.flink.table.types.logical.DoubleType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.table.types.logical.TimestampType;
import org.apache.flink.table.types.logical.VarCharType;

/** The columns of a job's rows, given as `name type,name type`: bigint, double, timestamp or text. */
final class Columns implements Serializable {
    private static final long serialVersionUID = 1;
    private static final int MICROSECONDS = 6;
    private static final String DIGITS = "0123456789abcdef".repeat(8);
    private static final int TEXT = 84;

    final RowType type;

    Columns(String given) {
        type = new RowType(
                Arrays.stream(given.split(","))
                        .map(column -> column.split(" "))
                        .map(words -> new RowType.RowField(words[0], typeOf(words[1])))
                        .collect(Collectors.toList()));
    }

    TypeInformation<RowData> rows() {
        return InternalTypeInfo.of(type);
    }

    List<String> names() {
        return type.getFieldNames();
    }

    LogicalType at(int place) {
        return type.getTypeAt(place);
    }

    /** Make a row out of its number: cheap, and as wide as those of the files. */
    RowData make(long number) {
        GenericRowData row = new GenericRowData(type.getFieldCount());
        for (int place = 0; place < type.getFieldCount(); place++) {
            row.setField(place, make(place, number));
        }
        return row;
    }

    private Object make(int place, long number) {
        switch (at(place).getTypeRoot()) {
            case BIGINT:
                return number;
            case DOUBLE:
                return number * 0.37;
            case TIMESTAMP_WITHOUT_TIME_ZONE:
                return TimestampData.fromEpochMillis(1_700_000_000_000L + number, 0);
            default:
                return StringData.fromString(place < 2 ? "name-" + number % 1000 : text(number));
        }
    }

    private static String text(long number) {
        int shift = (int) (number & 31);
        return DIGITS.substring(shift, shift + TEXT);
    }

    private static LogicalType typeOf(String word) {
        switch (word) {
            case "bigint":
                return new BigIntType();
            case "double":
                return new DoubleType();
            case "timestamp":
                return new TimestampType(MICROSECONDS);
            case "text":
                return new VarCharType(VarCharType.MAX_LENGTH);
            default:
                throw new IllegalArgumentException("no such type: " + word);
        }
    }
}
